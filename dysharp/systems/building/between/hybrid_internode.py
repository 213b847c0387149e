"""Hybrid-EP's kernels over several NVLink domains: the kernels of DeepEP (`deepep_internode`) with fewer steps.

| step | differs from DeepEP's |
|---|---|
| start | a launch with a cached handle; no notify |
| a row to the rail's GPU of each remote domain | from the registered input, without send slots and rings |
| work of an SM | on a chunk of neighbouring tokens as soon as all of its rows have landed: a time per row and domain |

The buffer has room for all tokens. A call has a cached handle: the gathering of routing maps and the kernels between the
buffer and the experts' rows, which the real form of one domain has, are not charged.

Constants: `internode.hybrid_*` in specs/data/fitted.toml. Source of the steps: DeepEP, branch hybrid-ep,
docs/Hybrid-EP_Implementation.md.
"""

import numpy as np

from dysharp.program import I32, I64, Discipline
from dysharp.systems.building.between.deepep_internode import Internode
from dysharp.systems.building.between.two_hop import TwoHop
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software_steps import SoftwareSteps


class HybridInternode(Internode):
    """The two kernels on `n_sm` SMs, which take turns at chunks of `chunk` tokens."""

    def __init__(self, layer: LayerBuilder, n_sm: int, chunk: int) -> None:
        SoftwareSteps.__init__(self, layer)
        self.n, self.hop = n_sm, TwoHop(layer)
        self.part: I64 = self.hop.token.astype(np.int64) % layer.tokens // chunk  # [units]
        self.channel = self.part % n_sm

    def begin(self, name: str, after: I32 | None) -> I32:
        """The launch, behind `after` of all GPUs."""
        return self.delay(f"{name}.launch", self.costs.kernel_ps, after_all=after)

    def queues(self, name: str) -> I32:
        """`[gpus, SMs]` one queue per GPU: rows leave in token order, whichever SM takes their chunk."""
        return np.asarray(np.repeat(self.layer.issuers(name)[:, None], self.n, axis=1))

    def writes(self, start: I32) -> I32:
        """Rows leave from the registered input."""
        return np.asarray(start[self.layer.p.sent_source])

    def groups(self, name: str, stream: I64) -> tuple[I64, int]:
        """The units of one chunk of tokens in one domain; its flag covers all of them."""
        parts = int(self.part.max(initial=0)) + 1
        found, chunk = np.unique(stream * parts + self.part, return_inverse=True)
        return chunk.astype(np.int64), len(found)

    def hold(self, stream: I64, sends: I32, work: I32) -> None:
        """The buffer has room for all tokens."""

    def work(self, operator: str, gpu: I32, channel: I64, chunk: I64, n_bytes: int) -> I32:
        """A DELAY per chunk on its SM: a time per unit, whatever its copies."""
        units = np.bincount(chunk, minlength=len(gpu))
        unit_ps = self.costs.ps("internode.hybrid_row_us") + self.costs.copy_ps("internode.hybrid_GBps", n_bytes)
        issuer = self.issuers(f"{operator}.forward", Discipline.READY_FIFO, self.n)[gpu, channel]
        return self.copies(operator, self.in_turn(unit_ps, units), gpu, issuer, units, name="forward").op
