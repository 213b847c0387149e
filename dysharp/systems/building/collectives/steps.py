"""`Steps`: a collective's Program under construction. What kernels of collectives have in common: starts, transfers of chunks, flags.

Hardware is that of the cluster. Where software does not fill the links, the framing of its transfers says so: `reaching` makes packets with as many
bytes beside their data. So Programs of several systems can share one machine.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dysharp.isa.framing import Framing
from dysharp.program import I32, I64, Alloc, Declared, Ints, Kind, Nature, Operator, Program, ProgramBuilder, Template, To, nets_of
from dysharp.program.constants import CLASSES, OTHER, REQUESTS, RESPONSES, hardware_of
from dysharp.specs import Cluster
from dysharp.systems.building.batch import ids
from dysharp.systems.building.collectives.chunks import SCHEMA, Chunks, cut
from dysharp.systems.building.gpus import GpuBuilder
from dysharp.systems.building.layer import CONTROL
from dysharp.systems.building.software import Software
from dysharp.systems.building.software_steps import WORD_BYTES
from dysharp.workload.collective import Collective

Traffic = dict[str, dict[str, int]]
FLIT, MOST_PAYLOAD = 16, 256
MOST_BULK = 1 << 30
"""Most bytes of one bulk op of a collective; a column of the Program has 31 bits."""
OPERATORS = {
    "all-reduce": ("reduce", "gather"),
    "all-gather": ("gather",),
    "reduce-scatter": ("reduce",),
    "all-to-all": ("exchange",),
    "broadcast": ("gather",),
}
"""Operation -> operators of its Programs besides "other", which is of the host: launches, flags, what stays on its GPU."""


def reaching(name: str, part: float, ack: int = 0) -> Framing:
    """A framing whose data are `part` of the bytes on the links, to 0.2 % for parts of 0.3 and more.

    `ack`: flits of acknowledgement per packet of eight flits, which count as bytes of the link that every GPU also sends on. 0: packets of any size.
    """
    payloads = range(7 * FLIT + 1, 8 * FLIT + 1) if ack else range(FLIT, MOST_PAYLOAD + 1)
    ways = ((p, h, p / (FLIT * (-(-p // FLIT) + h + ack))) for p in payloads for h in range(33))
    off = [(abs(reached / part - 1), h, p) for p, h, reached in ways]
    _, header, payload = min(off, key=lambda way: (way[0] > 0.002, way[1] == 0, way[1], way[0], way[2]))
    return Framing(name, payload_bytes=payload, header=header, ack=ack, source_ack=ack)


class Steps(GpuBuilder):
    """A Program of `work` under construction.

    `chunks`: what its ops move. `parts`, `whole`: see `chunks.cut`. `most`: most bytes of a chunk; 0: a train. `bulk`: chunks are as long as
    `parts` allow, for bulk ops.
    """

    def __init__(self, work: Collective, cluster: Cluster, parts: int = 1, *, whole: bool = False, most: int = 0, bulk: bool = False) -> None:
        self.work, self.cluster, self.n = work, cluster, cluster.n_gpus
        self.costs = Software(cluster)
        operators = (*(Operator(name, Nature.COMMUNICATION) for name in OPERATORS[work.operation]), Operator("other", Nature.HOST))
        nets = nets_of(cluster)
        domain = cluster.nvlink_gpus
        super().__init__(ProgramBuilder(hardware_of(cluster), self.n, CLASSES, nets=nets, domain_nodes=domain, operators=operators, schema=SCHEMA))
        train = self.b.hardware.train_bytes
        self.chunks: Chunks = cut(work, MOST_BULK if bulk else min(most or train, train), parts, whole=whole)
        self._durations: dict[tuple[str, int], int] = {}

    @property
    def flight_ps(self) -> int:
        """From a GPU over the switch to another GPU."""
        return 2 * self.b.hardware.lat

    def build(self, traffic: Traffic | None = None) -> Program:
        """The finished Program, which declares `traffic` (default: none; see `Declared`)."""
        return self.b.build(Declared(0, traffic or {}))

    # ---- ops -----------------------------------------------------------------------------------------------------------

    def template(self, name: str, kind: Kind, operator: str, fn: str, framing: Framing, *, src: str = "", dst: str = "", net: int = 0) -> int:
        """The id of a template of transfers; equal templates are one."""
        way, net_name = self.once(framing), f".{self.b.nets[net - 1].name}" if net else ""
        cls = REQUESTS if fn else OTHER
        return self.once(Template(name + net_name, kind, operator, fn or "control", cls, RESPONSES, framing=way, src=src, dst=dst, net=net))

    def move(self, template: int, node: I32, chunk: I64, issuer: I32, to: ArrayLike, *, each: int = 1, row: Ints | None = None) -> I32:
        """Transfers of `chunk[i]` from `node[i]` to `each` members, `to` `[ops x each]`. `row`: `[ops x each]` region rows that they fill."""
        to = np.broadcast_to(np.asarray(to, np.int32), (len(node) * each,))
        fills = None if row is None else np.ones(len(to), np.int32)
        members = To(np.full(len(node), each, np.int32), to, fills, row)
        return self.add(template, node, issuer=issuer, bytes=self.chunks.size[chunk], key=chunk, to=members, targets=1)

    def delay(self, name: str, cost_ps: int, issuer: I32, node: I32 | None = None) -> I32:
        """A DELAY of `cost_ps` (at least 1) for each of `issuer`, on `node` (default: one per GPU)."""
        key = name, max(1, cost_ps)
        if key not in self._durations:
            self._durations[key] = self.b.duration([0, key[1]])
        template = self.once(Template(name, Kind.DELAY, "other", "delay", tasks=1, duration=self._durations[key]))
        return self.add(template, self.gpus if node is None else node, issuer=issuer)

    def start(self, name: str, cost_ps: int) -> I32:
        """`[gpus]` one DELAY per GPU on a slot of its own."""
        return self.delay(name, cost_ps, self.issuers(name, slots=1))

    def keep(self, src: str, dst: str, chunk: I64, node: I32, after: I32) -> I32:
        """Copies of chunks that stay on their GPU, each behind the op `after`. Returns the copies, `[chunks]`; their time is in what the
        kernel's steps cost."""
        if not len(chunk):
            return np.zeros(0, np.int32)
        template = self.template("keep", Kind.PUT, "other", "copy", CONTROL, src=src, dst=dst)
        kept = self.move(template, node, chunk, self.ready("keep")[node], node)
        self.wait(kept, after)
        return kept

    # ---- waits ---------------------------------------------------------------------------------------------------------

    def arrivals(self, name: str, node: Ints, n_bytes: Ints) -> tuple[I32, I32]:
        """A region with one row and tile on each of `node`, complete after `n_bytes` (more than 0). Returns (rows, tiles)."""
        one = np.ones(len(node), np.int32)
        _, row, tile = self.b.regions(node, one, n_bytes, one, alloc=Alloc.PREFIX, name=name)
        return ids(row, len(node)), ids(tile, len(node))

    def flags(self, name: str, after: Sequence[I32]) -> I32:
        """Every GPU sends a word to every GPU behind all `after[gpu]`. Returns `[gpus]` JOINs, which wait for all words to the GPU."""
        n = self.n
        _, row, tile = self.b.regions(self.gpus, np.full(n, n), WORD_BYTES, n, alloc=Alloc.PREFIX, name=name)
        source, target = np.repeat(self.gpus, n), np.tile(self.gpus, n)
        template = self.template(name, Kind.PUT, "other", "", CONTROL)
        to = To(np.ones(n * n, np.int32), target, np.ones(n * n, np.int32), row + target * n + source)
        op = self.add(template, source, issuer=self.issuers(name)[source], bytes=WORD_BYTES, to=to, targets=1)
        for tails in after:
            if len(tails):
                self.wait(op[::n], tails)
        return self.join(f"{name}.seen", tiles=ids(tile, n))
