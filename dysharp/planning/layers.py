"""Microseconds of the pieces of a pipeline for one micro-batch on one GPU: a dense layer, a MoE layer, embedding, MTP layer, head.

The only file here that asks `training` for times: the closed forms that measured steps judge (`training.block`), with an EP system of `experts`.
"""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import cast

from dysharp.base import Texts, frozen
from dysharp.costs import Machine
from dysharp.model import PLAIN, Layout, Recipe
from dysharp.planning.experts import moved
from dysharp.planning.offload import offloaded_bytes
from dysharp.specs import WholeModel
from dysharp.training import LOADED, Block, BlockTimes, Dispatcher, EpTimes, PassCost, TrainingRecipe, WireTimes, expert_tensor, routed
from dysharp.training.costs import beside, with_rows
from dysharp.training.memory import DISPATCHERS, Saving

ROWS_ONCE = ("dedup", "in-switch", "moe-hub")
"""Systems that send one row per GPU, which is copied for its experts behind the wire, as DeepEP does."""


@frozen
class Pieces:
    """Cost of each piece by letter of a layout string, "d" and "t": a dense and a MoE layer. Recomputation is in `backward`."""

    costs: dict[str, PassCost]
    merged: dict[str, PassCost]
    """The same where the EP communication of one micro-batch runs beside computing of another."""

    def one(self, letter: str) -> tuple[float, float, float, float]:
        """(forward, backward, weights, steady) of a piece. `steady`: its forward and backward pass where two micro-batches overlap."""
        c, m = self.costs[letter], self.merged[letter]
        alone = c.forward + c.backward + c.weights
        return c.forward, c.backward, c.weights, min(alone, m.forward + m.backward + m.weights)

    def wires(self, letters: str) -> tuple[WireTimes, WireTimes]:
        """What a forward and a backward pass of pieces hold."""
        own = [(letters.count(letter), cost) for letter, cost in self.costs.items()]
        return sum((n * cost.forward_wires for n, cost in own), WireTimes()), sum((n * cost.backward_wires for n, cost in own), WireTimes())

    def passes(self, letters: str) -> tuple[float, float]:
        """Forward pass, and backward pass with gradients of weights, of pieces where two micro-batches overlap."""
        own = [(letters.count(letter), cost) for letter, cost in self.merged.items()]
        return sum(n * cost.forward for n, cost in own), sum(n * (cost.backward + cost.weights) for n, cost in own)

    def waits(self, letter: str) -> tuple[float, ...]:
        """`PassWaits` of both passes of a piece in the steady state."""
        one = self.merged[letter]
        return tuple(map(sum, zip(one.waits(), one.waits_backward(), strict=True)))


@frozen
class _PlannedBlock(Block):
    """A block whose routed experts run under an EP system of a plan. `imbalance`: rows of the hottest rank over the mean."""

    system: str = "alltoall"
    imbalance: float = 1.0

    def experts(self, ep: EpTimes | None) -> dict[str, PassCost]:
        """Pieces of routed experts; `ep`, a Row, takes the place of all."""
        if ep is not None or self.model.layer is None:
            return Block.experts(self, ep)
        pieces = routed(self)
        if self.system not in DISPATCHERS:
            del pieces["counts"], pieces["exchange"]
        else:
            pieces |= expert_tensor(self)
        pieces |= {name: pieces[name].times(self.imbalance) for name in (*LOADED, "exchange") if name in pieces}
        return pieces if "exchange" in pieces else pieces | {"exchange": moved(self, self.system, self.imbalance, pieces["experts"])}


def _dispatcher_of(system: str, machine: Machine) -> Dispatcher:
    """The dispatcher whose kernels, permutations and SMs a system has. On clusters without a packaged GPU, communication holds no SMs."""
    if system in DISPATCHERS:
        return cast(Dispatcher, system)
    return "deepep" if system in ROWS_ONCE and machine.cluster.gpu else "alltoall"


@lru_cache(maxsize=1 << 14)
def pieces_of(
    model: WholeModel, machine: Machine, layout: Layout, sequence: int, system: str, overlap: str, training_recipe: TrainingRecipe, imbalance: float,
    ep: EpTimes | None = None, offload: Texts = (), recipe: Recipe = PLAIN, block: BlockTimes | None = None,
) -> Pieces:  # fmt: skip
    """The pieces of `model` under the degrees of `layout`. `layout.dp` decides nothing here. `ep`: a Row of the routed experts.

    `offload`: modules whose inputs go to the host and back; `recipe`: how tensors are kept. `block`: a MoE block of merged Programs.
    """
    if layout.fsdp > 1 or offload:
        cut = replace(layout, dp=layout.ep * layout.etp, fsdp=1)
        alone = pieces_of(model, machine, cut, sequence, system, overlap, training_recipe, imbalance, ep, (), PLAIN, block)
        saving, tokens = Saving(training_recipe.recompute, imbalance=imbalance), layout.tokens(sequence)

        def shared(costs: dict[str, PassCost]) -> dict[str, PassCost]:
            made = dict(costs)
            for letter in costs.keys() - {"E", "L"}:
                moe = letter != "d" and model.layer is not None
                gone = tokens * offloaded_bytes(model, cut, moe, saving, recipe, offload) if offload else 0.0
                layer = 0 if letter == "d" else model.n_layers - 1
                made[letter] += beside(model, machine, layout, layer, costs[letter], system == "in-switch", gone, recipe)
            return made

        return Pieces(shared(alone.costs), shared(alone.merged))
    dispatcher = "" if ep is not None or model.layer is None else _dispatcher_of(system, machine)
    serial = replace(training_recipe, dispatcher=dispatcher, overlap_ep=False)

    def costs(own: TrainingRecipe) -> dict[str, PassCost]:
        built = _PlannedBlock(model, machine, layout, sequence, own, system, imbalance)
        kinds = [letter for letter, n in (("d", model.dense_layers), ("t", model.moe_layers)) if n]
        found = {letter: _layer(built, letter == "t", ep) for letter in kinds}
        if model.mtp:
            found["m"] = built.ends(False, 1, 0, ep)
        if block is not None:
            found = _with_block(found, block, own.overlap_ep)
        found = {letter: with_rows(machine, layout, one) for letter, one in found.items()}
        return found | {"E": built.ends(True, 0, 0, ep), "L": built.ends(False, 0, 1 + model.mtp, ep)}

    plain = costs(serial)
    return Pieces(plain, costs(replace(serial, overlap_ep=True)) if overlap == "pair" else plain)


@lru_cache(maxsize=1 << 14)
def chosen_of(
    model: WholeModel, machine: Machine, layout: Layout, sequence: int, system: str, overlap: str, training_recipe: TrainingRecipe, imbalance: float,
    ep: EpTimes | None = None,
) -> TrainingRecipe:  # fmt: skip
    """The training recipe of the last layer: which linears stay in BF16. Arguments as of `pieces_of`."""
    dispatcher = "" if ep is not None or model.layer is None else _dispatcher_of(system, machine)
    own = replace(training_recipe, dispatcher=dispatcher, overlap_ep=overlap == "pair")
    cut = replace(layout, dp=layout.ep * layout.etp, fsdp=1)
    return _PlannedBlock(model, machine, cut, sequence, own, system, imbalance).chosen(model.n_layers - 1, ep)[0]


def _with_block(found: dict[str, PassCost], block: BlockTimes, pair: bool) -> dict[str, PassCost]:
    """Layers with the times of merged Programs; `pair`: times of a forward beside a backward pass. An MTP layer changes by as much."""
    part = block.pair / (block.forward + block.backward) if pair else 1.0
    layer = found["t"].as_merged(BlockTimes(part * block.forward, part * block.backward, block.pair))
    if "m" in found:
        m, t = found["m"], found["t"]
        found["m"] = replace(m, forward=m.forward + layer.forward - t.forward, backward=m.backward + layer.backward - t.backward)
    return found | {"t": layer}


def _layer(block: Block, moe: bool, ep: EpTimes | None) -> PassCost:
    """A layer with experts or without; where attention differs, the mean of its layers."""
    model = block.model
    own = [layer for layer in range(model.n_layers) if model.is_moe(layer) == moe]
    last, number = {model.kind(layer): layer for layer in own}, Counter(map(model.kind, own))
    return sum((block.layer(last[kind], ep).times(n / len(own)) for kind, n in number.items()), PassCost())
