"""The functional machine for sub-layers: GEMMs, norms and chunks on real matrices, with the merge tables of the switch.

What an op does: `systems/building/tp/sublayer.py`. Loads and sums take places in a `protocol.merging` table for each home.
"""

from dataclasses import replace

import numpy as np

from dysharp.base import Array, EmulationMismatch, ProgramError, Texts
from dysharp.functional.collective import Chunkwise, CollectiveEmulation, compared
from dysharp.program import Kind, Program, Tail, Trace
from dysharp.protocol import merging
from dysharp.systems.building.tp.sublayer import OUT, PARTIAL, ROWS, Cuts, cuts_of
from dysharp.workload import SubLayer, norm

MOST_PLACES = 1 << 30


def emulate_sub_layer(
    system: str,
    program: Program,
    work: SubLayer,
    *,
    order: str = "random",
    seed: int = 0,
    trace: Trace | None = None,
    places: int | None = None,
    expire: float = 0.0,
) -> CollectiveEmulation:
    """Run `program` on the matrices of `work.inputs(seed)` and compare every GPU's result with the reference.

    `order`: as in `emulate_collective`. `places`: of a home's table; None: the Program's. `expire`: chance at every load that a cached response
    has left the table (timeout). Raises EmulationMismatch where ops wait for ever, or a tile misses a chunk.
    """
    inputs = work.inputs(seed)
    found = _SubLayerTensors(program, work, inputs, order, seed, trace, places, expire).run()
    return compared(system, program, work, order, found, work.reference(*inputs))


class _SubLayerTensors(Chunkwise):
    """One run of a sub-layer. `tables[home]`: its merge table. `cached`: by address, what the switch keeps."""

    first = PARTIAL
    merges = True

    def __init__(
        self,
        program: Program,
        work: SubLayer,
        inputs: tuple[list[Array], list[Array], list[Array]],
        order: str,
        seed: int,
        trace: Trace | None,
        places: int | None,
        expire: float,
    ) -> None:
        super().__init__(program, order, seed, trace)
        self.work, self.a, self.b, self.c = work, *inputs
        self.cuts = _cuts(program, work)
        own = 0 if program.sessions is None else program.sessions.places
        most = own if places is None else places
        self.tables = [merging.empty(most or MOST_PLACES) for _ in range(program.n_nodes)]
        self.rng, self.expire = np.random.default_rng((seed, 77)), expire
        self.cached: dict[int, Array] = {}
        self.asked: dict[int, bool] = {}  # load that went on -> whether its response comes to the table
        self.session: list[int] = [] if program.ops.session is None else program.ops.session.tolist()
        self.sums: dict[int, tuple[bool, list[int]]] = {}  # session -> (has a place, contributions so far)
        self.added: dict[int, Array] = {}

    def run(self) -> list[Array]:
        """`[tokens, outer]` of every GPU."""
        self.run_events()
        out: list[Array] = []
        for gpu in range(self.work.gpus):
            blocks = [self.buffers.get((OUT, gpu, block)) for block in range(self.cuts.blocks)]
            if any(block is None for block in blocks):
                raise EmulationMismatch(f"GPU {gpu}: found a block of rows without a product at the end, expected all {len(blocks)}")
            out.append(np.concatenate(blocks))  # type: ignore[arg-type]
        return out

    # ---- GEMMs and norms -----------------------------------------------------------------------------------------------

    def _done(self, op: int) -> None:
        t = self._template(op)
        if t.kind is Kind.COMPUTE and t.fn:
            {"gemm1": self._gemm1, "norm": self._norm, "gemm2": self._gemm2}[t.fn](self.node[op], self.key[op], t.src)
        super()._done(op)

    def _gemm1(self, gpu: int, tile: int, src: str) -> None:
        block, column = divmod(tile, self.cuts.tiles)
        rows = slice(block * self.cuts.rows, (block + 1) * self.cuts.rows)
        columns = slice(column * self.cuts.width, (column + 1) * self.cuts.width)
        self._put(PARTIAL, gpu, tile * self.cuts.parts, self.a[gpu][rows] @ self.b[gpu][:, columns], self.cuts.parts)

    def _norm(self, gpu: int, block: int, src: str) -> None:
        self._put(ROWS, gpu, block * self.cuts.chunks, norm(self._rows(gpu, block, (src,))), self.cuts.chunks)

    def _gemm2(self, gpu: int, block: int, src: str) -> None:
        self.buffers[OUT, gpu, block] = self._rows(gpu, block, (src, ROWS)) @ self.c[gpu]

    def _rows(self, gpu: int, block: int, buffers: Texts) -> Array:
        """A block of rows from its chunks, each from the first of `buffers` that has it."""
        first, parts = block * self.cuts.chunks, []
        for chunk in range(first, first + self.cuts.chunks):
            found = next((self.buffers[name, gpu, chunk] for name in buffers if (name, gpu, chunk) in self.buffers), None)
            if found is None:
                raise EmulationMismatch(f'block {block} on GPU {gpu}: found no chunk {chunk} in "{buffers[0]}", expected all {self.cuts.chunks}')
            parts.append(found)
        return np.concatenate(parts, axis=1)

    def _put(self, buffer: str, gpu: int, first: int, rows: Array, parts: int) -> None:
        self.buffers |= {(buffer, gpu, first + i): part for i, part in enumerate(np.split(rows, parts, axis=1))}

    # ---- sums in the switch --------------------------------------------------------------------------------------------

    def _deliver(self, member: int) -> None:
        op = self.owner[member]
        t, home = self._template(op), self.member_node[member]
        if t.kind is not Kind.PUSH_REDUCE or op not in self.read or home == self.node[op]:
            super()._deliver(member)
            return
        session = self.session[op]
        if session not in self.sums:
            self.tables[home], (*_, taken) = merging.step(self.tables[home], merging.Take())
            assert isinstance(taken, merging.Taken)
            self.sums[session] = taken.has_place, []
        has_place, together = self.sums[session]
        together.append(op)
        if has_place:  # the switch adds
            self.added[session] = self.added.get(session, 0.0) + self.read[op]
        else:
            self._write(t.fn, t.dst, home, op, self.read[op])
        assert self.p.sessions is not None
        if len(together) < int(self.p.sessions.expected[session]):
            return
        if has_place:
            self.tables[home], _ = merging.step(self.tables[home], merging.Give())
            self._write(t.fn, t.dst, home, op, self.added.pop(session))
        del self.sums[session]
        for row in self.fills(member):
            self._arrived(row, self.bytes[op])
        for one in together:
            self.progress.fire(Tail.MEMBER_DELIVERED, self.ptr[one])
            self.progress.finish(one)

    def _write(self, fn: str, buffer: str, gpu: int, op: int, part: Array) -> None:
        place = buffer, gpu, self.key[op]
        if fn == "merge":
            self.buffers[place] = self.buffers[place] + part if place in self.buffers else part
        elif fn == "load":
            self.buffers[place] = part
        else:
            super()._write(fn, buffer, gpu, op, part)

    # ---- loads in the switch -------------------------------------------------------------------------------------------

    def may_respond(self, member: int) -> None:
        if self.kind[self.owner[member]] != Kind.MERGED_LOAD or self.owner[member] in self.asked:
            super().may_respond(member)

    def _ask(self, op: int, member: int) -> None:
        if self.kind[op] != Kind.MERGED_LOAD:
            super()._ask(op, member)
            return
        assert self.p.sessions is not None
        address, home = self.session[op], self.member_node[member]
        if self.rng.random() < self.expire:
            self._step(home, merging.Expire(address))
        self._step(home, merging.Load(address, op, int(self.p.sessions.expected[address])))

    def _step(self, home: int, event: merging.Event) -> None:
        """One event of a home's table, and what it causes."""
        self.tables[home], outputs = merging.step(self.tables[home], event)
        for out in outputs:
            if isinstance(out, merging.Forward):
                assert isinstance(out.asker, int)
                self.asked[out.asker] = out.merges
                super()._ask(out.asker, self.ptr[out.asker])
            elif isinstance(out, merging.LoadResponse):
                assert isinstance(out.asker, int)
                assert isinstance(out.address, int)
                self._loaded(out.asker, self.cached[out.address])

    def _respond(self, member: int) -> None:
        op = self.owner[member]
        t, home = self._template(op), self.member_node[member]
        if t.kind is not Kind.MERGED_LOAD:
            super()._respond(member)
            return
        part = self._chunk(t.src, home, op)
        if self.asked.pop(op):
            self.cached[self.session[op]] = part
            self._step(home, merging.Response(self.session[op]))
        else:
            self._loaded(op, part)

    def _loaded(self, op: int, part: Array) -> None:
        self.read[op] = part
        self.progress.fire(Tail.MEMBER_DELIVERED, self.ptr[op])
        self._finish_later(op)


def _cuts(program: Program, work: SubLayer) -> Cuts:
    """The cuts of a Program: its chunks have one size. Raises ProgramError where that is no part of a tile."""
    whole = cuts_of(work, 1 << 40)
    moves = np.array([t.kind not in (Kind.COMPUTE, Kind.DELAY, Kind.JOIN) and bool(t.src) for t in program.templates], bool)
    sizes = np.unique(program.ops.bytes[moves[program.ops.template]])
    if len(sizes) != 1 or whole.chunk_bytes % int(sizes[0]):
        raise ProgramError(f"chunks: found {sizes.tolist()} B, expected one size, a part of a tile of {whole.chunk_bytes} B")
    return replace(whole, parts=whole.chunk_bytes // int(sizes[0]))
