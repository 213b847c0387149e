"""`PassCost`: microseconds of a part of a model on one GPU; `EpTimes`: those of a MoE layer from its Rows."""

from dataclasses import field, fields, replace
from operator import add, attrgetter

from dysharp.base import Amounts, frozen
from dysharp.training.recipe import Dispatcher
from dysharp.training.wires import NOTHING, WireTimes

PassWaits = tuple[float, float, float, float]
"""(EP communication that nothing hides, launches, shared weights, other collectives) inside a pass."""


@frozen
class EpTimes:
    """One MoE layer under an EP system, from its Rows, in microseconds: experts, dispatch and combine of a forward and of a backward pass.

    `exposed`: a transfer runs and nothing computes. `wire`: from the first transfer to the last, at most their sum. `link_flits`: flits on the
    links of one GPU, both ways and both passes. `busiest`: rows of the busiest rank over the mean where the framework's kernels compute the
    experts, beside the exchange of the system and with the permutations of a `dispatcher`; 0: the system's own kernels do.
    """

    forward: float
    backward: float
    forward_exposed: float = 0.0
    backward_exposed: float = 0.0
    forward_wire: float = 0.0
    backward_wire: float = 0.0
    link_flits: float = 0.0
    busiest: float = 0.0
    dispatcher: Dispatcher = "deepep"

    def without_wire(self) -> "EpTimes":
        """The same where nothing waits for a transfer."""
        bare = self.forward - self.forward_exposed, self.backward - self.backward_exposed
        return EpTimes(*bare, busiest=self.busiest, dispatcher=self.dispatcher)


@frozen
class BlockTimes:
    """Microseconds of a MoE block from merged Programs: alone forward and backward (gradients of weights included), and one more pair of both."""

    forward: float
    backward: float
    pair: float


@frozen
class PassCost:
    """Microseconds of a part of a model on one GPU. `backward` is without weight gradients.

    `*_exposed` is EP communication inside the passes that nothing hides; `*_wire` is all EP communication, for merged pairs. `*_host` is the time
    inside the passes in which the GPU waits for launches, `*_launches` all time that they take, `*_shards` the wait for weights that ranks share,
    `*_collectives` that for tensor and context parallel ranks, and for copies to the host.
    `merged`: blocks with times of merged Programs; `saved`: what each of them saves in a pair, summed.
    """

    forward: float = 0.0
    backward: float = 0.0
    weights: float = 0.0
    forward_exposed: float = 0.0
    backward_exposed: float = 0.0
    forward_wire: float = 0.0
    backward_wire: float = 0.0
    merged: int = 0
    saved: float = 0.0
    forward_host: float = 0.0
    backward_host: float = 0.0
    forward_launches: float = 0.0
    backward_launches: float = 0.0
    forward_shards: float = 0.0
    backward_shards: float = 0.0
    forward_collectives: float = 0.0
    backward_collectives: float = 0.0
    forward_wires: WireTimes = NOTHING
    backward_wires: WireTimes = NOTHING
    """What a pass has on wires: rows of experts, weights that ranks share, copies to the host."""
    parts: Amounts = field(default_factory=dict)
    """Forward, backward and weight gradients together, by name."""

    def __add__(self, other: "PassCost") -> "PassCost":
        parts = {name: self.parts.get(name, 0.0) + other.parts.get(name, 0.0) for name in [*self.parts, *other.parts]}
        return PassCost(*[*map(add, _NUMBERS(self), _NUMBERS(other)), parts])

    def times(self, factor: float) -> "PassCost":
        """All of it `factor` times as long."""
        return PassCost(*[*(factor * one for one in _NUMBERS(self)), {name: factor * us for name, us in self.parts.items()}])

    def recomputed(self) -> "PassCost":
        """The same with a forward pass before each backward pass."""
        own = ("", "_exposed", "_wire", "_collectives")
        again = {f"backward{what}": getattr(self, f"backward{what}") + getattr(self, f"forward{what}") for what in own}
        return replace(self, **again, parts=self.parts | {"recomputation": self.forward})

    def as_merged(self, block: BlockTimes) -> "PassCost":
        """This block with times of its merged Programs. What they are longer than its computing is launches, and beyond those exposed."""
        bare, late = self.forward - self.forward_exposed, self.backward + self.weights - self.backward_exposed
        return replace(
            self, forward=block.forward, backward=block.backward - self.weights, forward_exposed=max(0.0, block.forward - bare),
            backward_exposed=max(0.0, block.backward - late), forward_wire=0.0, backward_wire=0.0, merged=1,
            saved=block.forward + block.backward - block.pair, forward_host=_waited(block.forward, bare, self.forward_host),
            backward_host=_waited(block.backward, late, self.backward_host),
        )  # fmt: skip

    def overlapped(self, held: float) -> "PassCost":
        """The same with EP communication of one micro-batch beside computing of another, which holds the part `held` of the SMs meanwhile."""
        wire = self.forward_wire + self.backward_wire
        exposed = self.forward_exposed + self.backward_exposed
        computed = self.forward + self.backward + self.weights - exposed
        if not wire:
            return self
        hidden = computed + exposed - max(computed + held * min(wire, computed), wire)
        hidden = max(0.0, min(hidden, exposed))
        left = 1 - hidden / exposed if exposed else 0.0
        ahead, behind = self.forward_exposed, self.backward_exposed
        return replace(
            self, forward=self.forward - (1 - left) * ahead, backward=self.backward - (1 - left) * behind, forward_exposed=left * ahead,
            backward_exposed=left * behind, parts=self.parts | {"hidden": -hidden},
        )  # fmt: skip

    def on_part(self, part: float) -> "PassCost":
        """The same with computing on `part` of the SMs. EP communication takes as long as before."""
        bare, late = self.forward_exposed, min(self.backward_exposed, self.backward)
        return replace(
            self, forward=bare + (self.forward - bare) / part, backward=late + (self.backward - late) / part, weights=self.weights / part
        )  # fmt: skip

    def pair_with(self, backward: "PassCost") -> float:
        """This forward pass merged with the backward pass of another chunk: as long as its computing or its EP communication, whichever is longer.

        The parts that a chain of one micro-batch exposes are hidden by the other micro-batch (DeepSeek-V3 section 3.2.1). A pass takes at
        least its launches; no count is waited for.
        """
        serial = self.forward + backward.backward + backward.weights
        if both := min(self.merged, backward.merged):
            return serial - both * (self.saved + backward.saved) / (self.merged + backward.merged)
        computed = self._in_pair(backward)[1]
        wires = max(self.forward_wire + backward.backward_wire, (self.forward_wires + backward.backward_wires).most)
        return min(max(computed, wires), serial)

    def _in_pair(self, backward: "PassCost") -> tuple[float, float]:
        """Computing of `pair_with`, and the longer of it and the launches of each pass."""
        ahead = self.forward - self.forward_host - self.forward_exposed
        behind = backward.backward - backward.backward_host - backward.backward_exposed + backward.weights
        return ahead + behind, max(ahead, self.forward_launches) + max(behind, backward.backward_launches)

    def waits(self) -> PassWaits:
        """Of a forward pass."""
        return self.forward_exposed, self.forward_host, self.forward_shards, self.forward_collectives

    def waits_backward(self) -> PassWaits:
        """The same of a backward pass, whose weight gradients may be separate."""
        exposed = min(self.backward_exposed, self.backward - self.backward_host)
        return exposed, self.backward_host, self.backward_shards, self.backward_collectives

    def waits_in_pair(self, backward: "PassCost") -> PassWaits:
        """The same of `pair_with`."""
        whole, (computed, launched) = self.pair_with(backward), self._in_pair(backward)
        late = self.forward_shards + backward.backward_shards, self.forward_collectives + backward.backward_collectives
        return max(0.0, whole - launched), min(launched - computed, max(0.0, whole - computed)), *late


_NUMBERS = attrgetter(*[one.name for one in fields(PassCost) if one.name != "parts"])
"""All fields but `parts`."""


def _waited(whole: float, computed: float, host: float) -> float:
    """Launches in `whole`, where computing with launches of `host` takes `computed`."""
    return min(host, max(0.0, whole - computed + host))


def passes(name: str, forward: float, backward: float, weights: float = 0.0) -> PassCost:
    """A part called `name`."""
    return PassCost(forward, backward, weights, parts={name: forward + backward + weights})


def collectives(name: str, forward: float, backward: float) -> PassCost:
    """A part in which nothing computes."""
    return replace(passes(name, forward, backward), forward_collectives=forward, backward_collectives=backward)
