"""One token and one tile of every mechanism; beside docs/design/0002 these Programs stand as tables."""

from __future__ import annotations

from collections.abc import Callable

from toy import ROW, Toy

from dysharp.program.tables import Alloc, Chaining, Discipline, Head, Kind, Point, Program, Tail

COMPUTE, DELAY, JOIN, PUT, SIGNAL = Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.SIGNAL
MULTICAST, GET, PULL_REDUCE = Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE
PUSH_REDUCE, MERGED_LOAD = Kind.PUSH_REDUCE, Kind.MERGED_LOAD
TOYS: dict[str, Callable[[], Program]] = {}


def toy(build: Callable[[], Program]) -> Callable[[], Program]:
    """Register a toy under its function's name."""
    TOYS[build.__name__] = build
    return build


@toy
def dysharp() -> Program:
    """A multicast of first-touched rows; tiles notify; an in-switch sum comes back; a window of tokens."""
    t = Toy(3)
    window = t.b.semaphore(0, 1, "dispatch window", "tokens")
    (row1, tile1), (row2, tile2) = t.rows(1), t.rows(2)
    dispatch = t.op("dispatch", MULTICAST, 0, {1: [row1], 2: [row2]})
    last = []
    for node, tile in ((1, tile1), (2, tile2)):
        gemm1 = t.op("gemm1", COMPUTE, node, tiles=(tile,))
        last.append(t.op("gemm2", COMPUTE, node, after=(gemm1,)))
    combine = t.op("combine", PULL_REDUCE, 0, {1: [row1], 2: [row2]})
    t.notify(tile1, last[0], {row1: combine})
    t.notify(tile2, last[1], {row2: combine})
    t.b.hold(window, dispatch, combine)
    return t.build()


@toy
def deepep_rings() -> Program:
    """Counts first, then a put into a ring slot that the receiver frees once an SM has copied the row out."""
    t = Toy(2)
    ring = t.b.semaphore(0, 1, "ring slots at node 1", "rows")
    row, tile = t.rows(0, alloc=Alloc.PREFIX)
    counts = [t.op("count", SIGNAL, n, {1 - n: []}) for n in (0, 1)]
    known = t.op("counts known", DELAY, 1, after=(counts[0],), ps=3000)
    ready = t.op("buffer ready", SIGNAL, 1, {0: []}, after=(known,))
    dispatch = t.op("dispatch", PUT, 0, {1: []}, after=(counts[1], ready))
    copy = t.op("copy out", COMPUTE, 1, ps=1000)
    t.b.edges(Tail.MEMBER_DELIVERED, _member(t, dispatch), Head.OP_ISSUE, copy)
    head = t.op("ring head", SIGNAL, 1, {0: []}, after=(copy,))
    gemm = t.op("gemm1+2", COMPUTE, 1, after=(copy,))
    t.op("combine", PUT, 1, {0: [row]}, after=(gemm,))
    t.op("reduce", COMPUTE, 0, tiles=(tile,), ps=1000)
    t.b.hold(ring, dispatch, head)
    return t.build()


@toy
def deepep_ll() -> Program:
    """One put per expert into a fixed slot, a count word behind it; the receiver waits for count and rows."""
    t = Toy(2)
    row, _ = t.rows(1, alloc=Alloc.PREFIX)
    home, back = t.rows(0, alloc=Alloc.PREFIX)
    t.op("dispatch", PUT, 0, {1: [row]})
    count = t.op("count = 1", SIGNAL, 0, {1: []}, value=1)
    received = t.op("all received", JOIN, 1, after=(count,), rows=(row,), threshold=0)
    gemm = t.op("gemm1+2", COMPUTE, 1, after=(received,))
    t.op("combine", PUT, 1, {0: [home]}, after=(gemm,))
    t.op("weighted sum", COMPUTE, 0, tiles=(back,), ps=1000)
    return t.build()


@toy
def nvls() -> Program:
    """AllGather and ReduceScatter: every row to every GPU, a barrier, the sum of every GPU's row."""
    t = Toy(3)
    rows = [t.rows(n, alloc=Alloc.PREFIX) for n in range(3)]
    t.op("all-gather", MULTICAST, 0, {n: [rows[n][0]] for n in range(3)})
    gemms = [t.op("gemm1+2", COMPUTE, n, tiles=(rows[n][1],)) for n in range(3)]
    here = [t.op("barrier", SIGNAL, n, {0: []}, after=(gemms[n],)) for n in range(3)]
    barrier = t.op("all here", JOIN, 0, after=tuple(here))
    t.op("reduce-scatter", PULL_REDUCE, 0, {n: [rows[n][0]] for n in range(3)}, after=(barrier,))
    return t.build()


@toy
def comet() -> Program:
    """A thread block takes its tiles in list order and spins: its chain keeps the slot meanwhile."""
    t = Toy(2)
    row, tile = t.rows(1)
    engine = t.b.issuer(1, Discipline.PROGRAM_ORDER, name="copy engine")
    spin = t.b.chain(t.pools[1], Chaining.HOLD)
    gather = t.op("gather", GET, 1, {0: []}, issuer=engine)
    store = t.op("gathered row", PUT, 1, {1: [row]}, after=(gather,), issuer=engine)
    local = t.op("local tile", COMPUTE, 1, chain=spin, ps=1000)
    t.op("other work", COMPUTE, 1, ps=1000)
    t.op("remote tile", COMPUTE, 1, tiles=(tile,), chain=spin)
    first, second = (t.op(f"gemm2 columns {i}", COMPUTE, 1, after=(store, local), ps=1000) for i in (0, 1))
    t.op("reduce-scatter columns 0", PUT, 1, {0: []}, after=(first,), n_bytes=ROW // 2)
    t.op("reduce-scatter columns 1", PUT, 1, {0: []}, after=(second,), n_bytes=ROW // 2)
    return t.build()


@toy
def ccfuser() -> Program:
    """A thread block gets its remote tile, computes it and puts it back: a blocking get inside a chain."""
    t = Toy(2)
    block = t.b.chain(t.pools[1], Chaining.HOLD)
    barrier = t.op("barrier", SIGNAL, 0, {1: []})
    t.op("get tile", GET, 1, {0: []}, after=(barrier,), issuer=t.sm[1], chain=block)
    t.op("gemm1+2", COMPUTE, 1, chain=block)
    put = t.op("put result", PUT, 1, {0: []}, issuer=t.sm[1], chain=block)
    local = t.op("local tile", COMPUTE, 1, after=(barrier,))
    t.op("barrier after", SIGNAL, 1, {0: []}, after=(put, local))
    return t.build()


@toy
def fastermoe_tutel_chunks() -> Program:
    """Chunks on streams: all sends are queued first, returns behind them; stream order is program order."""
    t = Toy(2)
    streams = [t.b.issuer(n, Discipline.PROGRAM_ORDER, name="comm stream") for n in (0, 1)]
    sends = [t.op(f"S{c}", PUT, 0, {1: []}, issuer=streams[0]) for c in (0, 1)]
    computes = [t.op(f"C{c}", COMPUTE, 1, after=(s,)) for c, s in enumerate(sends)]
    for c, compute in enumerate(computes):
        t.op(f"R{c}", PUT, 1, {0: []}, after=(compute,), issuer=streams[1])
    return t.build()


@toy
def dualpipe_merge() -> Program:
    """Two Programs side by side: forward and backward of two micro-batches share streams in a fixed order."""
    t = Toy(2)
    comm = [t.b.issuer(n, Discipline.PROGRAM_ORDER, name="comm stream") for n in (0, 1)]
    main = [t.b.issuer(n, Discipline.PROGRAM_ORDER, pool=t.pools[n], name="main stream") for n in (0, 1)]
    dispatch_b = t.op("dispatch(B)", PUT, 0, {1: []}, issuer=comm[0])
    attention_f = t.op("attention(F)", COMPUTE, 0, issuer=main[0])
    dispatch_f = t.op("dispatch(F)", PUT, 0, {1: []}, after=(attention_f,), issuer=comm[0])
    mlp_b = t.op("mlp(B)", COMPUTE, 1, after=(dispatch_b,), issuer=main[1])
    combine_b = t.op("combine(B)", PUT, 1, {0: []}, after=(mlp_b,), issuer=comm[1])
    mlp_f = t.op("mlp(F)", COMPUTE, 1, after=(dispatch_f,), issuer=main[1])
    t.op("combine(F)", PUT, 1, {0: []}, after=(mlp_f,), issuer=comm[1])
    t.op("attention(B)", COMPUTE, 0, after=(combine_b,), issuer=main[0])
    return t.build()


@toy
def moe_hub() -> Program:
    """Address-free row stores in hub order; ready tiles start; surplus tiles end when all rows are in."""
    t = Toy(2)
    hub = [t.b.issuer(n, Discipline.ROUND_ROBIN, name="packet scheduler") for n in (0, 1)]
    rat = t.b.semaphore(1, 1, "row allocation table", "rows")
    row, tile = t.rows(1)
    home, back = t.rows(0, alloc=Alloc.PREFIX)
    t.op("st.rowsp", PUT, 0, {1: [row]}, issuer=hub[0], key=0)
    t.op("metadata .nop", PUT, 0, {1: []}, issuer=hub[0], n_bytes=32, prio=1)
    total = t.op("rows sent = 1", SIGNAL, 0, {1: []}, issuer=hub[0], value=1)
    closed = t.op("row closed", JOIN, 1, rows=(row,))
    everything = t.op("all ready", JOIN, 1, after=(total, closed), threshold=0)
    gemm = t.op("gemm1+2, tile 0", COMPUTE, 1, tiles=(tile,))
    surplus = t.op("tile 1 ready", JOIN, 1, threshold=1)
    t.op("gemm1+2, tile 1", COMPUTE, 1, after=(surplus,))
    t.b.edges(Tail.OP_DONE, everything, Head.JOIN_CANCEL, surplus)
    t.op("combine", PUT, 1, {0: [home]}, after=(gemm,), issuer=hub[1])
    t.op("scale", COMPUTE, 0, tiles=(back,), ps=1000)
    t.b.hold(rat, row, closed, acquire_at=Point.ROW_FIRST_TOUCH)
    return t.build()


@toy
def cais() -> Program:
    """Equal loads merge in the switch (one request reaches the home), partial sums merge on the way home."""
    t = Toy(3)
    load, reduce = t.b.sums([0], [2], 0), t.b.sums([0], [2], 0)
    # The home's own part and the sum of the others.
    row, tile = t.rows(0, n_bytes=2 * ROW, alloc=Alloc.PREFIX)
    for node in range(3):
        get = t.op("ld.cais", MERGED_LOAD, node, {0: []}, session=load)
        gemm = t.op("tile", COMPUTE, node, after=(get,))
        t.op("red.cais", PUSH_REDUCE, node, {0: [row]}, after=(gemm,), session=reduce)
    t.op("layer norm", COMPUTE, 0, tiles=(tile,), ps=1000)
    return t.build()


@toy
def t3() -> Program:
    """Tracked stores of a GEMM trigger a DMA to the ring neighbour, whose memory adds: a row of two parts."""
    t = Toy(2)
    dma = t.b.issuer(0, Discipline.READY_FIFO, name="dma")
    mine, sent = t.rows(0)
    other, summed = t.rows(1, n_bytes=2 * ROW)
    for node, row in ((0, mine), (1, other)):
        gemm = t.op("tile", COMPUTE, node)
        t.op("tracked store", PUT, node, {node: [row]}, after=(gemm,))
    t.op("triggered dma", PUT, 0, {1: [other]}, tiles=(sent,), issuer=dma)
    t.op("chunk reduced", JOIN, 1, tiles=(summed,))
    return t.build()


@toy
def nccl_ring() -> Program:
    """AllGather step by step: every GPU passes on what it received; a slot per hop, freed by a word back."""
    t = Toy(3)
    slots = [t.b.semaphore(n, 1, "slots at the next GPU", "chunks") for n in range(2)]
    (row1, tile1), (row2, tile2) = t.rows(1), t.rows(2)
    step1 = t.op("step 1", PUT, 0, {1: [row1]})
    step2 = t.op("step 2", PUT, 1, {2: [row2]}, tiles=(tile1,))
    free1 = t.op("slot free", SIGNAL, 1, {0: []}, after=(step2,))
    free2 = t.op("slot free", SIGNAL, 2, {1: []}, tiles=(tile2,))
    t.b.hold(slots[0], step1, free1)
    t.b.hold(slots[1], step2, free2)
    return t.build()


def _member(t: Toy, op: int) -> int:
    """The first member of `op` in a Program under construction."""
    return int(t.build().members.ptr[op])
