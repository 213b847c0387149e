"""`TpBuilder`: the Program of a sub-layer under construction. GEMMs, norms, launches, barriers; `ways.py` moves chunks.

What the ops of a sub-layer move: tiles and chunks of activations.

Tokens are cut into blocks of rows, block r is at home on GPU r mod N. A block has tiles of columns, a tile has chunks: chunk
(block, tile, k) has the number (block * tiles + tile) * K + k.

| `Template.fn` | kinds | `Ops.key` | meaning |
|---|---|---|---|
| gemm1 | COMPUTE | tile | the chunks of the tile in "partial" on the op's node |
| merge | PUSH_REDUCE | chunk | chunk of "sum" at home += the chunk of "partial" on the op's node |
| add | PUT | chunk | chunk of "sum" on the member += chunk of `src` on the op's node; it begins as the member's own chunk of "partial" |
| sum | PULL_REDUCE | chunk | chunk of "sum" on the op's node = the sum of "partial" on all members |
| norm | COMPUTE | block | the block's chunks of "rows" = norm of those of "sum", on the op's node |
| copy | PUT, MULTICAST | chunk | chunk of `dst` on every member = chunk of `src` on the op's node |
| load | GET, MERGED_LOAD | chunk | chunk of "gathered" on the op's node = chunk of "rows" on the member |
| gemm2 | COMPUTE | block | block of "out" = the block of `src` times the second weights. What is not in "gathered" is in "rows" |
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import PS_PER_US, ByName, ConfigError, Texts, frozen_keywords
from dysharp.costs import gemm_gang
from dysharp.program import I32, Alloc, Declared, Discipline, Framing, Kind, Program, Tail, Template, frozen, hardware_of
from dysharp.program.schema import COMMUNICATION, COMPUTE, HOST, Buffer, Function, Schema, operators
from dysharp.specs import Cluster, choice, choice_int
from dysharp.systems.building.base import CONTROL, STORE
from dysharp.systems.building.batch import ids
from dysharp.systems.building.gpus import GpuBuilder
from dysharp.workload import SubLayer

PARTIAL, SUM, ROWS, GATHERED, OUT = "partial", "sum", "rows", "gathered", "out"


def _schema() -> Schema:
    buffers = (("activations", "tile"), (PARTIAL, "chunk"), (SUM, "chunk"), (ROWS, "chunk"), (GATHERED, "chunk"), (OUT, "block"))
    functions = (
        Function("gemm1", ("COMPUTE",), ("activations",), (PARTIAL,), "a tile of the first product"),
        Function("merge", ("PUSH_REDUCE",), (PARTIAL,), (SUM,), "a contribution to a chunk of the sum"),
        Function("add", ("PUT",), (PARTIAL, SUM), (SUM,), "a chunk, added to the chunk there"),
        Function("sum", ("PULL_REDUCE",), (PARTIAL,), (SUM,), "the sum of a chunk over all members"),
        Function("norm", ("COMPUTE",), (SUM,), (ROWS,), "the norm of a block of rows"),
        Function("copy", ("PUT", "MULTICAST"), (SUM, ROWS, GATHERED), (SUM, GATHERED), "a chunk"),
        Function("load", ("GET", "MERGED_LOAD"), (ROWS,), (GATHERED,), "a chunk of its home"),
        Function("gemm2", ("COMPUTE",), (ROWS, GATHERED), (OUT,), "a block of rows of the second product"),
    )
    return Schema(tuple(Buffer(name, rows, "elements") for name, rows in buffers), functions)


SCHEMA = _schema()
OPERATORS = operators(gemm1=COMPUTE, reduce=COMMUNICATION, norm=COMPUTE, gather=COMMUNICATION, gemm2=COMPUTE, other=HOST)


@frozen
class Cuts:
    """`rows`: of a block. `blocks`: of all tokens; block r is at home on GPU r mod N. `tiles`: of a block, `width` columns each.
    `parts`: chunks of a tile, `chunk_bytes` each."""

    work: SubLayer
    rows: int
    blocks: int
    tiles: int
    width: int
    parts: int

    @property
    def chunks(self) -> int:
        """Chunks of a block."""
        return self.tiles * self.parts

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk that moves."""
        return self.rows * self.width // self.parts * self.work.element_bytes


def cuts_of(work: SubLayer, most_bytes: int) -> Cuts:
    """The cuts of `work`: blocks of at most `gemm.tile_rows` rows, as many on each GPU; chunks of at most `most_bytes`, at least a column.

    Raises ConfigError where GPUs do not divide the tokens, or tiles the width.
    """
    if work.tokens % work.gpus:
        raise ConfigError(f"sub-layer: found {work.tokens} tokens on {work.gpus} GPUs, expected a multiple of the GPUs (each is home of as many)")
    each = work.tokens // work.gpus
    many = next(k for k in range(-(-each // choice_int("gemm.tile_rows")), each + 1) if each % k == 0)
    tiles = -(-work.hidden // choice_int("gemm.tile_cols"))
    if work.hidden % tiles:
        raise ConfigError(f"sub-layer: found width {work.hidden}, expected one that {tiles} tiles divide")
    rows, width = each // many, work.hidden // tiles
    least = -(-rows * width * work.element_bytes // most_bytes)
    parts = next((k for k in range(least, width + 1) if width % k == 0), width)
    return Cuts(work, rows, work.tokens // rows, tiles, width, parts)


FLAG_BYTES = 16
SYNC = Framing("sync", header=0, ack=0, source_ack=0)
"""An empty packet: one flit, and no answer to it."""
DRAWS = 64
"""Different times of one kind of task: jitter is drawn among them."""


@frozen_keywords
class Machine:
    """What systems of a sub-layer have in common.

    `seed`: of launches and jitter. `chunk_bytes`: most bytes of a chunk. `comm_sms`: SMs that the communication kernels take.
    `channels`: classes of traffic; reductions, loads and replies share one where there are fewer.
    """

    seed: int = 0
    chunk_bytes: int = 16384
    comm_sms: int = 0
    channels: Texts = ("requests", "responses", "other")
    rotated: bool = False
    """GPUs begin at different blocks, as rings and stores to peers do, so that not all of them send to one home."""


class TpBuilder(GpuBuilder):
    """`begun[g]`, `first[g, r, c]`, ...: ops as int32 arrays by GPU, block and tile."""

    def __init__(self, work: SubLayer, cluster: Cluster, machine: Machine) -> None:
        self.work, self.machine, self.n = work, machine, work.gpus
        hardware = hardware_of(cluster)
        vcs = max(1, 2 * cluster.n_vcs // (len(machine.channels) - 1))  # the class "other" has only flags
        hardware = replace(hardware, n_vcs=min(hardware.n_vcs, vcs))
        self.cuts: Cuts = cuts_of(work, min(machine.chunk_bytes, hardware.train_bytes))
        super().__init__(cluster, self.n, machine.channels, hardware=hardware, operators=OPERATORS, schema=SCHEMA)
        self.rng = np.random.default_rng(np.random.SeedSequence([machine.seed, 2605, 5628]))
        self.blocks = np.arange(self.cuts.blocks, dtype=np.int32)
        self.home = self.blocks % self.n
        self.every_chunk = np.arange(self.cuts.blocks * self.cuts.chunks, dtype=np.int32)
        self.home_of_chunk = self.home[self.every_chunk // self.cuts.chunks]
        sms = max(1, cluster.n_sms - machine.comm_sms)
        self.slots, pools = sms, self.pools(sms)
        self._on_sms = {name: self.issuers(name, Discipline.READY_FIFO, pools=pools) for name in ("norm", "gemm2", "gemm1")}
        if machine.comm_sms:
            self._on_sms["fused"] = self.issuers("fused", Discipline.READY_FIFO, pools=self.pools(machine.comm_sms, "comm"))
        self.traffic = {"up": {}, "down": {}}

    def build(self) -> Program:
        """The finished Program, which declares the bytes of its ways."""
        return self.b.build(Declared(0, self.traffic))

    # ---- issuers, templates, waits -------------------------------------------------------------------------------------

    def pair_senders(self, name: str) -> I32:
        """`[gpus, gpus]` issuers of a GPU for each home, so that a full home holds up no other."""
        return np.stack([self.issuers(name, Discipline.READY_FIFO) for _ in range(self.n)], axis=1)

    def cls(self, name: str) -> int:
        """The class that carries `name`; the first one where the machine has no channel of that name."""
        return self.b.classes.index(name) if name in self.b.classes else 0

    def template(
        self, name: str, kind: Kind, operator: str, fn: str = "", src: str = "", dst: str = "", cls: str = "requests", framing: Framing = CONTROL
    ) -> int:
        """The id of a template of transfers; equal templates are one. `framing`: of what carries no data."""
        framing = STORE if fn else framing
        way, classes = self.once(framing), (self.cls(cls), self.cls("responses"))
        return self.once(Template(name, kind, operator, fn or "control", *classes, framing=way, src=src, dst=dst))

    def waits(self, name: str, ps: ArrayLike, node: I32) -> I32:
        """A DELAY of `ps[i]` (at least 1) on each of `node`, on slots that are always free."""
        ps = np.maximum(1, np.broadcast_to(np.asarray(ps, np.int64), len(node)))
        times, which = np.unique(ps, return_inverse=True)
        slots = [self.b.pool(g, max(1, int((node == g).sum())), name) for g in self.gpus.tolist()]
        issuer = self.issuers(name, Discipline.READY_FIFO, pools=slots)
        return self.delays(name, [0, *times.tolist()], node, issuer[node], rows=1 + which)

    # ---- launches and barriers -----------------------------------------------------------------------------------------

    def launch(self, name: str, after: I32 | None = None) -> I32:
        """`[gpus]` starts of a kernel behind `after[gpu]`: `tp.launch_gap_us` later, because the host has queued it before. The first kernel of a
        GPU is late by a time of its own, up to `tp.launch_skew_us`, and what follows on this GPU is late with it."""
        skew = self.rng.uniform(0, float(choice("tp.launch_skew_us").value), self.n)
        begun = self.waits(f"launch.{name}", (skew if after is None else float(choice("tp.launch_gap_us").value)) * PS_PER_US, self.gpus)
        self.wait_each(begun, after)
        return begun

    def _flags(
        self, name: str, at: I32, each: int, tile_rows: int, node: I32, to: I32, place: I32, after: I32, *, prio: I32 | int = 0,
        tail: Tail = Tail.OP_DONE, framing: Framing = CONTROL,
    ) -> int:  # fmt: skip
        """A flag from `node[i]` behind `after[i]` to the GPU `to[i]`, or by the switch to all GPUs `to[i, :]`, into row `place` of a region of `each`
        rows on each of `at`. Returns its first tile, of `tile_rows` rows."""
        _, row, tile = self.b.regions(at, np.full(len(at), each), FLAG_BYTES, tile_rows, alloc=Alloc.PREFIX, name=name)
        template = self.template(name, Kind.MULTICAST if to.ndim > 1 else Kind.PUT, "other", cls="other", framing=framing)
        columns: ByName = {"each": to.size // len(node), "issuer": self.ready(name)[node], "bytes": FLAG_BYTES, "prio": prio}
        self.wait(self.between_gpus(template, node, to.ravel(), row + place.ravel(), **columns), after, tail)
        return tile

    def barrier(self, name: str, after: I32) -> I32:
        """`[gpus]` JOINs that wait until every GPU has seen the flag of every GPU, which it sends behind `after[gpu]`."""
        n = self.n
        places = self.gpus[None, :] * n + self.gpus[:, None]  # row i of a GPU is written by GPU i
        tile = self._flags(name, self.gpus, n, n, self.gpus, np.tile(self.gpus, (n, 1)), places, after)
        return self.join(f"{name}.seen", tiles=ids(tile, n))

    def block_flags(self, after: I32) -> I32:
        """`[gpus, blocks]` tiles that are ready when the flag of a block has come, which its home sends to all GPUs behind `after[block]`."""
        n, blocks = self.n, self.cuts.blocks
        places = self.gpus[None, :] * blocks + self.blocks[:, None]
        tile = self._flags("ready", self.gpus, blocks, 1, self.home, np.tile(self.gpus, (blocks, 1)), places, after, prio=self.blocks)
        return ids(tile, n * blocks).reshape(n, blocks)

    def told_home(self, done: I32) -> I32:
        """`[blocks]` tiles at home that are ready when every GPU has told that `done[gpu, block]` has ended."""
        n, blocks = self.n, self.cuts.blocks
        node, block = np.repeat(self.gpus, blocks), np.tile(self.blocks, n)
        return ids(self._flags("told", self.home, n, n, node, self.home[block], block * n + node, done.ravel(), prio=block), blocks)

    def released(self, name: str, ready: I32, tail: Tail = Tail.OP_DONE) -> I32:
        """`[groups]` JOINs: a group is released when it is registered on every GPU (point `tail` of `ready[gpu, group]`), a round trip to the
        switch later.

        Of every GPU one empty packet goes up, and one comes down to every GPU: here a flit of each GPU to the next one. The flit's way takes as long
        as the way to the switch and back; when all flits have arrived, the switch would have released the group everywhere.
        """
        n, groups = ready.shape
        node, group = np.repeat(self.gpus, groups), np.tile(np.arange(groups, dtype=np.int32), n)
        target = (node + 1) % n
        more: ByName = {"prio": group, "tail": tail, "framing": SYNC}
        tile = self._flags(name, self.gpus, groups, 1, node, target, target * groups + group, ready.ravel(), **more)
        release = self.joins(name, np.arange(groups, dtype=np.int32) % n)
        self.wait(release[None, :], ids(tile, n * groups).reshape(n, groups), Tail.TILE_READY)
        return release

    def join_of(self, name: str, node: I32, tails: I32, tail: Tail = Tail.OP_DONE) -> I32:
        """`[gpus]` JOINs that wait for each of `tails[i]` on `node[i]`."""
        joined = self.join(name)
        self.wait(joined[node], tails, tail)
        return joined

    def all_of(self, name: str, ops: I32) -> I32:
        """JOINs `[gpus, ...]` that wait for all of the last axis of `ops`, each on the GPU of the first axis."""
        shape = ops.shape[:-1]
        node = np.broadcast_to(self.gpus.reshape(-1, *[1] * (len(shape) - 1)), shape).ravel()
        joined = self.joins(name, node)
        self.wait(np.repeat(joined, ops.shape[-1]), ops.ravel())
        return joined.reshape(shape)

    # ---- work on SMs ---------------------------------------------------------------------------------------------------

    def _gemm_ps(self, flops: float) -> float:
        """Time of so many operations of a GEMM on one SM."""
        rate = self.cluster.peak_flops_per_us("bf16") * float(choice("tp.gemm_part").value) / self.cluster.n_sms
        return flops / rate * PS_PER_US

    def _compute(self, name: str, fn: str, buffers: tuple[str, str], tasks: int, ps: float, ops: tuple[I32, I32, ArrayLike], place: str = "") -> I32:
        node, key, prio = ops
        # Times of a task, from the shortest to the longest draw.
        spread = float(choice("tp.jitter").value)
        duration = self.b.duration([0, *(max(1, round(ps * (1 + spread * u))) for u in np.linspace(-1, 1, DRAWS))])
        template = Template(name, Kind.COMPUTE, name, fn, tasks=tasks, duration=duration, src=buffers[0], dst=buffers[1])
        return self.add(template, node, issuer=self._on_sms[place or name][node], key=key, prio=prio, rows=self.rng.integers(1, DRAWS + 1, len(node)))

    def gemm1(self, begun: I32, *, together: bool = False) -> I32:
        """`[gpus, blocks, tiles]` tiles of the first GEMM behind `begun[gpu]`. `together`: thread blocks of equal number start together.

        A group has a quarter of the SMs. It registers on a GPU when the group before it begins there.
        """
        n, tiles, many = self.n, self.cuts.tiles, self.cuts.blocks * self.cuts.tiles
        tile = np.arange(many, dtype=np.int32)
        node, key = np.repeat(self.gpus, many), np.tile(tile, n)
        block = key // tiles
        home = (node - 1 - block) % n if self.machine.rotated else block % n  # one tile for every home in turn, so that no home is flooded
        turn = (block // n * tiles + key % tiles) * n + home
        ps = self._gemm_ps(2.0 * self.cuts.rows * self.cuts.width * self.work.inner)
        op = self._compute("gemm1", "gemm1", ("activations", PARTIAL), 1, ps, (node, key, turn)).reshape(n, many)
        self.wait(op, begun[:, None])
        each = max(1, self.slots // 4)
        if together and many > each:
            in_turn = op[:, np.argsort(turn[:many])]
            release = self.released("group1", in_turn[:, : (many - 1) // each * each : each], Tail.OP_ISSUED)
            later = np.arange(each, many)
            self.wait(in_turn[:, later], release[later // each - 1][None, :])
        return op.reshape(n, self.cuts.blocks, tiles)

    def norm(self, node: I32, block: I32, place: str = "norm") -> I32:
        """Norms of blocks on nodes: an SM per eight rows passes over each row `tp.norm_passes` times, at its part of the memory rate.

        `place`: "fused" = on the SMs of the communication kernels.
        """
        tasks = -(-self.cuts.rows // 8)
        moved = float(choice("tp.norm_passes").value) * self.cuts.rows * self.work.hidden * self.work.element_bytes / tasks
        ps = moved / (self.cluster.hbm_bytes_per_us / self.cluster.n_sms) * PS_PER_US
        return self._compute("norm", "norm", (SUM, ROWS), tasks, ps, (node, block, block), place)

    def gemm2(self, src: str = GATHERED) -> I32:
        """`[gpus, blocks]` the second GEMM: a gang of thread blocks for each block of rows."""
        node, block = np.repeat(self.gpus, self.cuts.blocks), np.tile(self.blocks, self.n)
        prio: ArrayLike = (block - node) % self.cuts.blocks if self.machine.rotated else block
        tasks = gemm_gang(self.work.outer)
        ps = self._gemm_ps(2.0 * self.cuts.rows * self.work.hidden * self.work.outer / tasks)
        return self._compute("gemm2", "gemm2", (src, OUT), tasks, ps, (node, block, prio)).reshape(self.n, self.cuts.blocks)

    @property
    def resident(self) -> int:
        """Blocks of the second GEMM whose loads a GPU has under way: those that fill its SMs, and as many behind them."""
        return max(2, 2 * -(-self.slots // gemm_gang(self.work.outer)))

    @property
    def table_bytes(self) -> int:
        """Bytes that the tables of the switch ports of one GPU hold; 0 = any number."""
        return self.cluster.reduction_buffer_bytes * max(1, self.cluster.n_switches)

    @property
    def places(self) -> int:
        """Chunks that the switch ports of one home hold; 0 = any number."""
        return max(1, self.table_bytes // self.cuts.chunk_bytes) if self.table_bytes else 0

    @property
    def timeout_ps(self) -> int:
        """Time after which an unused response leaves the table."""
        return choice_int("tp.timeout_us") * PS_PER_US
