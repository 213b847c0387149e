"""MoRI, AMD's kernels: one copy per GPU on the link of its pair; over nodes once per node by NIC."""

import numpy as np

from dysharp.base import ByName, ConfigError
from dysharp.program import I32, Discipline, frozen
from dysharp.systems import BOTH_FORMS, BY_TYPE, Costs, Facts, Form, Layer, Moves, Reach, Ships, Shown, kernels
from dysharp.systems.building import Batch, Kernels, TwoHop, placed

ROWS = ("rows", "fp8", "fp8-plain", "fp4-plain")
MESSAGE_TOKENS = 64
"""Tokens of a source that its proxy in another node sees together."""


@frozen
class Options(Form):
    """Options of MoRI's kernels IntraNode and InterNodeV1.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `dispatch` | format of rows: "rows" (the model's), "fp8", "fp8-plain" or "fp4-plain" (bytes: `building.formats`) |
    | `combine` | format of results: "rows", or "fp8-plain" (cast into the registered buffer) |
    | `zero_copy` | the experts write their results into the registered buffer; False: Combine copies them there |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds fixed times of both kernels, the work of compute units on copies, the copy into the registered
    buffer, flags and barriers.
    """

    dispatch: str = "rows"
    combine: str = "rows"
    zero_copy: bool = False
    compute: bool = True


FACTS = Facts(
    source="https://github.com/ROCm/mori (IntraNode, IntraNodeLL, InterNodeV1)",
    options=Options,
    moves=Moves("one_copy_per_gpu", between="two_hop", formats=ROWS, results=("rows", "fp8-plain")),
    costs=Costs(
        permutes=1,
        fused=False,
        drops="launches, flags and barriers, work of compute units per copy, the copy into the registered buffer (form real has them)",
    ),
    reach=Reach(
        domains=BOTH_FORMS,
        by_name=("paper",),  # AMD's kernels, for links between pairs
        assumes="NICs of 400 Gb/s and no work per message: rows of two nodes of MI308X took 1.7 to 5.5 times as long",
        no_switch=BOTH_FORMS,
    ),
    shown=Shown("#8C510A"),
    ships=Ships("ROCm/mori README: MI300X, MI308X, MI325X, MI355X", ("cdna3", "cdna4"), BY_TYPE),
)


def _begins(layer: Layer, options: Options) -> ByName:
    """A cast needs a copy."""
    if options.zero_copy and options.combine != "rows":
        raise ConfigError(f"mori.combine: found {options.combine!r} with zero_copy, expected rows (a cast needs the copy into the registered buffer)")
    return {}


class _Kernels(Kernels):
    """Steps of both kernels."""

    def copies_on_units(self, node: I32, begun: I32) -> Batch:
        """Add a DELAY on the compute units of `node[i]` for each copy i of Dispatch, one after the other."""
        issuer = self.ready("copies", self.pools(1, "copies"))[node]
        return self.copies("dispatch", [0, max(1, self.costs.ps("mori.copy_us") // self.cluster.n_sms)], node, issuer, name="copy", begun=begun)

    def counts(self, name: str, start: I32, sends: Batch) -> I32:
        """A flag with a count to every GPU of the node, after `start[gpu]` and all `sends` of a GPU.

        Returns `[gpus]` JOINs called `name`, which wait for all flags that a GPU receives.
        """
        sent, known = self.join("dispatch.sent", start, sends), self.join(name)
        self.flags("dispatch.counts", 1, sent, known)
        return known

    def opened(self, finished: I32) -> I32:
        """The start of Combine after `finished[gpu]`: the fixed time, the copy, the barrier of the node. Returns `[gpus]` JOINs."""
        received = self.counted(self.p.gpu)
        moved = 0 if self.options.zero_copy else self.model.row_bytes + self.back_bytes
        fixed = self.costs.ps("mori.combine_us")
        call = self.delay("combine.call", [fixed + self.costs.moved_ps(int(rows) * moved) for rows in received], after=finished)
        ready = self.join("combine.ready")
        self.flags("combine.barrier", 1, call, ready)
        return ready


class _IntraNode(_Kernels):
    """Dispatch: copies into places that remote counters give, then counts. Combine: a barrier, then the sources read and add."""

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` JOINs after which all GPUs have sent all rows."""
        call = self.delay("dispatch.call", self.costs.ps("mori.dispatch_us"))
        work = self.copies_on_units(self.p.source, begun=call)
        puts = self.dispatch_puts(Discipline.READY_FIFO)
        self.wait_each(puts.op, work.op)
        return self.counts("received", call, puts)

    def combine(self, finished: I32) -> None:
        """Add Combine. A source reads after its barrier; the reads are pushes of the same bytes the same way."""
        ready = self.opened(finished)
        puts = self.combine_puts(Discipline.READY_FIFO)
        self.wait_each(puts.op, ready[puts.to])


class _InterNode(_Kernels):
    """Tokens go once per remote node by NIC to the GPU of the source's index, which copies them on; sums per node come back."""

    def prepare(self) -> None:
        self.hop = TwoHop(self)

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` JOINs after which all GPUs of a node have copied all rows."""
        hop = self.hop
        call = self.delay("dispatch.call", self.costs.ps("mori.dispatch_us"))
        far = np.flatnonzero(hop.far)
        block = (hop.token[far] % self.tokens) // MESSAGE_TOKENS
        message = (hop.source[far].astype(np.int64) * self.tokens + block) * self.cluster.domains + hop.domain[far]
        messages, group = np.unique(message, return_inverse=True)
        sends, tiles = hop.send(self.issuers("nic")[hop.source[far]], far, group, len(messages))
        self.wait_first(Batch(op=sends, node=hop.source[far]), call)
        landed = placed(len(hop.token), far, tiles[group])
        work = self.copies_on_units(hop.relay[hop.unit_of_pair], begun=call)
        self.wait_tiles(work.op, landed[hop.unit_of_pair])
        forwards = hop.forward(self.ready("dispatch"))
        self.wait_each(forwards.op, work.op)
        return self.counts("received", call, forwards)

    def combine(self, finished: I32) -> None:
        """Add Combine: results gather at the proxy of their node after its barrier, and one sum per node goes back."""
        hop = self.hop
        ready = self.opened(finished)
        back = self.p.push_order
        gathers, tiles = hop.gather(self.ready("combine"), back)
        self.wait_each(gathers, ready[hop.relay[hop.unit_of_pair[back]]])
        self.wait_tiles(hop.give_back(), tiles)


kernels("mori", FACTS, between=_InterNode, begins=_begins)(_IntraNode)
