"""`Steps`: a collective's Program under construction. What kernels of collectives have in common: starts, transfers of chunks, flags.

Hardware is that of the cluster. Where software does not fill the links, the framing of its transfers says so: `reaching` makes packets with as many
bytes beside their data. So Programs of several systems can share one machine.

What the ops of a collective move: numbered chunks of the data.

**Chunks.** The data of a collective is cut into chunks with the numbers 0, 1, 2, ... Shares are cut apart, from their first byte on.
The chunks of the vector follow each other: those of share 0, then those of share 1. An empty share has no chunk. An all-reduce
that deals out no shares is cut as one share. In an all-to-all every GPU
has another vector: first come all chunks of GPU 0's vector, then those of GPU 1's.

**Ops.** An op with one of the functions below moves one whole chunk: `Ops.key` is its number, `Ops.bytes` its bytes. All ops of a chunk have
equal bytes, and every chunk is in some op. So the place of a chunk in the data is the sum of the bytes of all chunks before it.

**Buffers.** Every GPU has buffers. A buffer holds chunks, each known by its number. "vector" holds the chunks `Chunks.before(gpu)` before the
first op, "result" the chunks `Chunks.after(gpu)` after the last op, both in the order of their numbers. All other buffers ("scratch.sum", ...)
are empty at first. Nobody writes "vector".

| `Template.fn` | kinds | meaning for chunk k = `Ops.key` |
|---|---|---|
| copy | PUT, MULTICAST | chunk k of `dst` on every member = chunk k of `src` on the op's node |
| copy | GET | chunk k of `dst` on the op's node = chunk k of `src` on the member |
| add | PUT | chunk k of `dst` on the member += chunk k of `src` on the op's node |
| add | GET | chunk k of `dst` on the op's node += chunk k of `src` on the member |
| sum | PULL_REDUCE | chunk k of `dst` on the op's node = the sum of chunk k of `src` on all members |
| control, delay, join | all | no data |

A chunk of `dst` that no op has written yet is, for "add", the chunk of "vector" on the same GPU. A push reads when it is issued; its members have
the chunk when it is delivered there, at the latest when the op is done. A pull reads and writes between its issue and its end. Every read comes
behind the writes that it needs: edges, regions that pushes fill, and issuers in program order see to it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import ConfigError, ProgramError
from dysharp.isa.framing import Framing
from dysharp.program import I32, I64, OTHER, REQUESTS, RESPONSES, Buffer, Function, Ints, Nature, Operator, Schema, frozen, nets_of, runs, spans
from dysharp.program.tables import Alloc, Declared, Kind, Program, Template
from dysharp.specs import Cluster
from dysharp.systems.building.batch import ids
from dysharp.systems.building.gpus import GpuBuilder
from dysharp.systems.building.layer import CONTROL
from dysharp.systems.building.software_steps import WORD_BYTES
from dysharp.workload import Collective

VECTOR, RESULT, SUM = "vector", "result", "scratch.sum"
SCRATCH = "scratch."
"""Begin of the names of buffers that only the Program knows."""

MOST_OPS = 40_000_000
"""Transfers of the largest Program, one for each chunk and GPU: about 12 GB."""


def _schema() -> Schema:
    """Buffers and functions of a collective's Program."""
    kept = (SUM, *(f"{SCRATCH}{place}" for place in ("first", "second")))
    reads, writes = (VECTOR, RESULT, *kept), (RESULT, *kept)
    functions = (
        Function("copy", ("PUT", "MULTICAST", "GET"), reads, writes, "the chunk of the op's key"),
        Function("add", ("PUT", "GET"), reads, writes, "the chunk of the op's key, added to the chunk there"),
        Function("sum", ("PULL_REDUCE",), reads, writes, "the sum of the chunk of the op's key over all members"),
    )
    return Schema(tuple(Buffer(name, "chunk", "elements of the chunk") for name in reads), functions)


SCHEMA = _schema()
FUNCTIONS = tuple(function.name for function in SCHEMA.functions)


@frozen
class Chunks:
    """The chunks of `work`. `size`: `[chunks]` bytes. `share`: `[chunks]` GPU whose share has the chunk. `vector`: `[chunks]` GPU whose
    vector has the chunk, -1 = the vectors of all GPUs have a chunk of this number."""

    work: Collective
    size: I64
    share: I32
    vector: I32

    def before(self, gpu: int) -> I64:
        """The chunks of `gpu`'s vector."""
        if self.work.operation == "all-gather":
            return np.flatnonzero(self.share == gpu)
        return np.flatnonzero((self.vector == gpu) | (self.vector < 0))

    def after(self, gpu: int) -> I64:
        """The chunks of `gpu`'s result."""
        if self.work.operation in ("reduce-scatter", "all-to-all"):
            return np.flatnonzero(self.share == gpu)
        return np.arange(len(self.size))

    @property
    def place(self) -> I64:
        """`[chunks]` number of chunks of the same share and vector before the chunk."""
        return spans(0, runs(self.share, self.vector)[1])

    @property
    def of_share(self) -> I64:
        """`[chunks]` number of chunks of the same share and vector."""
        _, which, count = np.unique(self.share + (self.vector.astype(np.int64) + 1) * self.work.gpus, return_inverse=True, return_counts=True)
        return np.asarray(count[which])


def _cut(work: Collective, most: int, parts: int = 1, *, whole: bool = False) -> Chunks:
    """Chunks of at most `most` bytes, equal to one element within a share. A share has a multiple of `parts` chunks where it is that long.

    `whole`: the vector is one share, GPU 0's.
    """
    unit, shares = work.element_bytes, (work.size, *[0] * (work.gpus - 1)) if whole else work.shares
    counts = [min(share // unit, parts * -(-share // (most // unit * unit * parts))) for share in shares]
    vectors = work.gpus if work.operation == "all-to-all" else 1
    if (ops := sum(counts) * vectors * work.gpus) > MOST_OPS:
        found = f"found about {ops:.2g} transfers for {work.description} on {work.gpus} GPUs"
        raise ConfigError(f"workload: {found}, expected at most {MOST_OPS:.2g} (fewer bytes or GPUs)")
    cuts = [unit * (share // unit * np.arange(n + 1) // max(n, 1)) for share, n in zip(shares, counts, strict=True)]
    size = np.concatenate([np.diff(one) for one in cuts]).astype(np.int64)
    share = np.repeat(np.arange(work.gpus, dtype=np.int32), counts)
    vector = np.repeat(np.arange(vectors, dtype=np.int32), len(size)) if work.operation == "all-to-all" else np.full(len(size), -1, np.int32)
    return Chunks(work, np.tile(size, vectors), np.tile(share, vectors), vector)


def chunks_of(work: Collective, program: Program) -> Chunks:
    """The chunks that the ops of `program` move. Raises ProgramError where they are not the data of `work`."""
    moves = np.array([t.fn in FUNCTIONS for t in program.templates], bool)[program.ops.template]
    key, n_bytes = program.ops.key[moves], program.ops.bytes[moves]
    size = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    size[key] = n_bytes
    wrong = np.flatnonzero(size[key] != n_bytes)
    if len(wrong):
        raise ProgramError(f"chunk {key[wrong[0]]}: found ops of {n_bytes[wrong[0]]} B and of {size[key[wrong[0]]]} B, expected one size")
    vectors = work.gpus if work.operation == "all-to-all" else 1
    if size.sum() != vectors * work.size or not size.all():
        raise ProgramError(f"chunks: found {size.sum()} B in {len(size)} chunks, expected all {vectors * work.size} B of {work.description}")
    ends = np.cumsum(np.tile(work.shares, vectors))
    which = np.searchsorted(ends, np.cumsum(size))
    vector = (which // work.gpus if work.operation == "all-to-all" else np.full(len(size), -1)).astype(np.int32)
    return Chunks(work, size, (which % work.gpus).astype(np.int32), vector)


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
        self.work, self.n = work, cluster.n_gpus
        operators = (*(Operator(name, Nature.COMMUNICATION) for name in OPERATORS[work.operation]), Operator("other", Nature.HOST))
        nets, domain = nets_of(cluster), cluster.nvlink_gpus
        super().__init__(cluster, self.n, nets=nets, domain_nodes=domain, operators=operators, schema=SCHEMA)
        train = self.b.hardware.train_bytes
        self.chunks: Chunks = _cut(work, MOST_BULK if bulk else min(most or train, train), parts, whole=whole)
        self._durations: dict[tuple[str, int], int] = {}

    def build(self) -> Program:
        """The finished Program, which declares `traffic` (`declare`)."""
        return self.b.build(Declared(0, self.traffic))

    # ---- ops -----------------------------------------------------------------------------------------------------------

    def template(self, name: str, kind: Kind, operator: str, fn: str, framing: Framing, *, src: str = "", dst: str = "", net: int = 0) -> int:
        """The id of a template of transfers; equal templates are one."""
        way, net_name = self.once(framing), f".{self.b.nets[net - 1].name}" if net else ""
        cls = REQUESTS if fn else OTHER
        return self.once(Template(name + net_name, kind, operator, fn or "control", cls, RESPONSES, framing=way, src=src, dst=dst, net=net))

    def move(self, template: int, node: I32, chunk: I64, issuer: I32, to: ArrayLike, *, each: int = 1, row: Ints | None = None) -> I32:
        """Transfers of `chunk[i]` from `node[i]` to `each` members, `to` `[ops x each]`. `row`: `[ops x each]` region rows that they fill."""
        to = np.broadcast_to(np.asarray(to, np.int32), (len(node) * each,))
        return self.between_gpus(template, node, to, row, each=each, issuer=issuer, bytes=self.chunks.size[chunk], key=chunk, targets=1)

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
        issuer, place = self.issuers(name)[source], row + target * n + source
        op = self.between_gpus(template, source, target, place, issuer=issuer, bytes=WORD_BYTES, targets=1)
        for tails in after:
            if len(tails):
                self.wait(op[::n], tails)
        return self.join(f"{name}.seen", tiles=ids(tile, n))
