"""What the ops of a collective move: numbered chunks of the data.

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

import numpy as np

from dysharp.base.errors import ConfigError, ProgramError
from dysharp.program import I32, I64, Buffer, Function, Program, Schema, frozen, runs, spans
from dysharp.workload.collective import Collective

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


def cut(work: Collective, most: int, parts: int = 1, *, whole: bool = False) -> Chunks:
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
