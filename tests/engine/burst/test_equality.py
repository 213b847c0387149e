"""Engine and oracle, written from one page and sharing no code, return the same Trace to the picosecond."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import numpy as np
import pytest

from dysharp.engine.burst import run as burst
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.oracle.run import OracleRun
from dysharp.program import Discipline, Head, Kind, Program, ProgramBuilder, Tail, Template, To, Trace
from dysharp.program.payload import moved_bytes
from dysharp.program.tables import Point
from dysharp.program.verify import verify
from tests.interpreters.random_loads import random_loads
from tests.interpreters.random_merges import random_merge
from tests.interpreters.random_points import random_points
from tests.interpreters.random_programs import coverage, random_program
from tests.interpreters.random_sums import random_sums

CHUNKS, PER_CHUNK = 6, 85  # 510 tiny Programs
QUICK = 2  # chunks: they tell every mutant of kernels (bench/mutants.py, EQUAL_PROGRAMS)
LARGER = range(9000, 9012)
MERGES = 30  # in a chunk
LOADS = 16
COLUMNS = [f.name for f in fields(Trace) if f.name != "n_events"]
MUST_OCCUR = (
    *(f"kind.{k.name}" for k in list(Kind)[: Kind.PULL_REDUCE + 1]),
    *("tail.OP_DONE", "tail.TILE_READY", "head.OP_ISSUE", "head.TILE_NOTIFY", "acquire.OP_ISSUED"),
    *("issued by.PROGRAM_ORDER", "issued by.READY_FIFO", "issued by.SMALLEST_KEY", "issued by.ROUND_ROBIN"),
    *("alloc.FIRST_TOUCH", "alloc.PREFIX", "region without rows", "short last tile"),
    *("hold given back by itself", "hold given back by another op", "issuers that share a pool"),
    *("member.local", "member.remote", "member fills several rows", "copy with extra bytes"),
    *("op without members", "op with local members only", "op with local and remote members"),
    *("notify.local", "notify.remote", "pull answered in its own class"),
    *("row table", "row table of several banks", "run: wait for a row table"),
    *("single node", "infinite buffers", "several networks", "slow node in a network", "cost of messages"),
    *("issued later than ready", "issued later than ready, needs a semaphore", "started later than issued"),
    *("run: channels full", "run: train above its channel", "run: behind another train"),
    *("run: semaphore full", "run: no free slot", "run: cut-through wait", "run: task behind memory"),
    *("tie.ready", "tie.start", "tie.done", "tie.member", "tie.tile_ready", "tie across columns"),
    *("run: acknowledgement waits for turns", "run: acknowledgement behind others", "run: copy behind an earlier one"),
)


MUST_OCCUR_AT_POINTS = (
    *(f"tail.{t.name}" for t in Tail),
    *(f"head.{h.name}" for h in Head),
    *(f"acquire.{p.name}" for p in Point if p is not Point.OP_DONE),
    *("release.OP_ISSUED", "chain.HOLD", "chain.YIELD", "op of a chain", "JOIN with a threshold", "announcement"),
    *("paced issuer", "cancelled op", "run: semaphore full", "run: no free slot"),
)


MUST_OCCUR_WITH_SUMS = (
    *("kind.PUSH_REDUCE", "contribution of the home", "sum of one contribution", "sum of several contributions"),
    *("any number of places", "places of a home", "run: sum without a place", "run: sum with a place", "run: output buffer full"),
)


MUST_OCCUR_WITH_LOADS = (
    *("kind.MERGED_LOAD", "kind.PUSH_REDUCE", "load of the home", "load expected alone", "loads expected together"),
    *("any number of places", "places of a home", "op of a chain", "head.MEMBER_RESPOND", "tail.MEMBER_DELIVERED", "cancelled op"),
    *("run: load that goes on", "run: load that waits", "run: load answered at once", "run: load that passes"),
    *("run: cached response dropped", "run: load that timed out", "run: sum without a place", "run: output buffer full"),
)


def assert_same(program: Program, where: str) -> OracleRun:
    """Every order column equal; returns the oracle's run."""
    run = OracleRun(program)
    run.play()
    found, expected = run_burst(program)[0], run.trace()
    for name in COLUMNS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.dtype == theirs.dtype, (where, name)
        np.testing.assert_array_equal(ours, theirs, f"{where}, column {name} (engine, oracle)")
    assert found.digest() == expected.digest(), where
    return run


def _chunks(n: int, quick: int) -> list[object]:
    """The numbers of `n` chunks, those from `quick` on marked slow."""
    return [pytest.param(chunk, marks=pytest.mark.slow) if chunk >= quick else chunk for chunk in range(n)]


@pytest.mark.parametrize("chunk", _chunks(CHUNKS, QUICK))
def test_engine_equals_oracle(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        program = random_program(seed)
        seen.update(coverage(program, assert_same(program, f"seed {seed}")))
    print("\n".join(f"{n:8d} {name}" for name, n in sorted(seen.items())))
    assert seen["programs"] == PER_CHUNK
    assert [name for name in MUST_OCCUR if seen[name] == 0] == []


@pytest.mark.parametrize("chunk", _chunks(3, 1))
def test_engine_equals_oracle_at_other_points(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        program = random_points(seed)
        verify(program)
        seen.update(coverage(program, assert_same(program, f"seed {seed}")))
    assert [name for name in MUST_OCCUR_AT_POINTS if seen[name] == 0] == []


@pytest.mark.slow
@pytest.mark.parametrize("chunk", _chunks(2, 1))
def test_engine_equals_oracle_with_sums_in_the_switch(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        program = random_sums(seed)
        verify(program)
        seen.update(coverage(program, assert_same(program, f"seed {seed}")))
    assert [name for name in MUST_OCCUR_WITH_SUMS if seen[name] == 0] == []


def test_engine_equals_oracle_with_merged_loads():
    for seed in range(LOADS):
        assert_same(random_loads(seed), f"seed {seed}")


@pytest.mark.slow
def test_engine_equals_oracle_with_many_merged_loads():
    seen: Counter[str] = Counter()
    for seed in range(LOADS, 10 * LOADS):
        program = random_loads(seed)
        verify(program)
        seen.update(coverage(program, assert_same(program, f"seed {seed}")))
    assert [name for name in MUST_OCCUR_WITH_LOADS if seen[name] == 0] == []


@pytest.mark.slow
@pytest.mark.parametrize("chunk", _chunks(3, 1))
def test_engine_equals_oracle_on_merges(chunk):
    for seed in range(chunk * MERGES, (chunk + 1) * MERGES):
        program = random_merge(seed)
        verify(program)
        assert_same(program, f"seed {seed}")


@pytest.mark.sampled
@pytest.mark.parametrize("seed", LARGER)
def test_engine_equals_oracle_on_larger_programs(seed):
    assert_same(random_program(seed, size="small"), f"seed {seed}")


def wide_program(n_nodes: int, seed: int) -> Program:
    """Transfers of four kinds on many nodes: bit sets of several words, the reduction unit in any."""
    rng = np.random.default_rng(seed)
    b = ProgramBuilder(random_program(seed).hardware, n_nodes, ("data", "request", "answer"))
    store = b.framing(Framing("store", targets_per_ext=8))
    kinds = (Kind.PUT, Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE)
    templates = [b.template(Template(k.name, k, "other", cls=int(k > Kind.MULTICAST), response_cls=2, framing=store)) for k in kinds]
    send = [[b.issuer(n, Discipline(d), name=f"send{d}") for d in range(3)] for n in range(n_nodes)]
    hot = rng.integers(0, n_nodes, 3)
    for op in range(2 * n_nodes):
        which, node = int(rng.integers(0, 4)), int(rng.integers(0, n_nodes))
        n = int(rng.integers(1, n_nodes + 1)) if kinds[which] in (Kind.MULTICAST, Kind.PULL_REDUCE) else 1
        to = rng.permutation(n_nodes)[:n] if n > 1 or rng.random() < 0.5 else rng.choice(hot, 1)
        issuer = send[node][int(rng.integers(0, 3))]
        size = int(rng.choice((16, 1536)))
        b.ops(templates[which], node, issuer=issuer, bytes=size, key=op % 5, prio=op % 2, to=To(n, to))
        if op and rng.random() < 0.3:
            b.edges(Tail.OP_DONE, int(rng.integers(0, op)), Head.OP_ISSUE, op)
    return b.build()


@pytest.mark.sampled
@pytest.mark.parametrize("n_nodes", [31, 32, 33, 64, 72])
def test_engine_equals_oracle_on_many_nodes(n_nodes):
    for seed in (1, 2):
        program = wide_program(n_nodes, seed)
        verify(program)
        assert_same(program, f"{n_nodes} nodes, seed {seed}")


@pytest.mark.parametrize("seed", range(20, 26))
def test_two_runs_give_one_digest(seed):
    program = random_program(seed)
    assert len({run_burst(program)[0].digest() for _ in range(2)}) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("slice_events", [1, 2, 7, 64])
def test_slices_of_the_loop_change_nothing(slice_events, monkeypatch):
    programs = [random_program(seed) for seed in range(30, 50)]
    whole = [run_burst(p)[0] for p in programs]
    monkeypatch.setattr(burst, "SLICE_EVENTS", slice_events)
    sliced = [run_burst(p)[0] for p in programs]
    assert [t.digest() for t in sliced] == [t.digest() for t in whole]
    assert [t.n_events for t in sliced] == [t.n_events for t in whole]


def test_progress_counts_done_ops(monkeypatch):
    monkeypatch.setattr(burst, "SLICE_EVENTS", 50)
    program, seen = random_program(3), []
    run_burst(program, lambda done, total: seen.append((done, total)))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (program.n_ops, program.n_ops)


def test_receivers_in_turn_the_smallest_key_first():
    b = ProgramBuilder(random_program(4).hardware, 3)
    t = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store"))))
    turns = b.issuer(0, Discipline.ROUND_ROBIN)
    for receiver, key in ((1, 1), (1, 0), (1, 2), (2, 0)):
        b.ops(t, 0, issuer=turns, bytes=128, key=key, to=To(1, receiver))
    assert np.argsort(assert_same(b.build(), "turns").trace().start).tolist() == [1, 3, 0, 2]


def independent_puts(order: np.ndarray, n_nodes: int = 4) -> Program:
    """Puts between random nodes, planned in `order`: all ready at time zero, in one FIFO per node."""
    rng = np.random.default_rng(5)
    n = len(order)
    source, target = rng.integers(0, n_nodes, n), rng.integers(0, n_nodes, n)
    size = rng.choice((128, 1000, 4096), n)
    b = ProgramBuilder(random_program(4).hardware, n_nodes)
    t = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store"))))
    send = np.array([b.issuer(i, Discipline.READY_FIFO) for i in range(n_nodes)])
    b.ops(t, source[order], issuer=send[source[order]], bytes=size[order], to=To(np.ones(n, int), target[order]))
    return b.build()


def test_order_of_independent_ops_moves_times_not_bytes():
    n = 300
    one = independent_puts(np.arange(n))
    two = independent_puts(np.random.default_rng(1).permutation(n))
    for program in (one, two):
        verify(program)
    a, b = assert_same(one, "in order").trace(), assert_same(two, "shuffled").trace()
    assert a.digest() != b.digest()
    assert moved_bytes(one) == moved_bytes(two)
    assert a.up_busy.tolist() == b.up_busy.tolist()
    assert a.down_busy.tolist() == b.down_busy.tolist()
