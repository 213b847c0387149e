"""Bulk ops cost few events, take the time of their trains, and make way for everything else (docs/design/0001, Bulk)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dysharp.analysis import attribute, traffic_bytes, wire_table
from dysharp.analysis.timeline.record import record
from dysharp.base.errors import ConfigError, ProgramError
from dysharp.engine.burst.lower import beyond_packets
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.oracle.run import OracleRun
from dysharp.program import Discipline, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.tables import Alloc, Hardware, Net
from dysharp.program.verify import verify
from tests.interpreters.mutants import BULK_MUTANTS, caught
from tests.interpreters.random_bulk import crowded_bulk, random_bulk

MACHINE = Hardware(450_000, 300_000, 600_000, 600_000, 100_000, 100_000, n_vcs=8, vc_bytes=512 * 16 * 18, n_links=18)
MACHINES = {
    "buffers of two round trips": MACHINE,
    "infinite buffers": replace(MACHINE, vc_bytes=0),
    "buffers below a round trip": replace(MACHINE, vc_bytes=18_432),
}
SIZE = 2 << 20
ROW = 7168
SEEDS = range(16)
MUST_OCCUR = ("piece of several trains", "piece of one train", "turn of a piece", "turn of one train", "piece cut at its up link", "turn cut")


class Case:
    """GPU 0 sends SIZE bytes to GPU 1, in trains or as one bulk op, beside rows."""

    def __init__(self, bulk: bool, hardware: Hardware = MACHINE, ack: int = 1) -> None:
        self.b = ProgramBuilder(hardware, 3, ("data", "rows", "more"))
        self.bulk, self.framing = bulk, self.b.framing(Framing("store", ack=ack, source_ack=ack))
        self.count = 0

    def send(self, node: int = 0, to: int = 1, size: int = SIZE, cls: int = 0) -> None:
        """All bytes: one op, or one op for each train."""
        template = self.b.template(Template("bulk", Kind.PUT, "combine", cls=cls, framing=self.framing))
        n = 1 if self.bulk else -(-size // self.b.hardware.train_bytes)
        issuer = self.b.issuer(node, Discipline.PROGRAM_ORDER, name=f"send{self.count}")
        self.b.ops(template, np.full(n, node), issuer=issuer, bytes=size // n, to=To(1, np.full(n, to)))
        self.count += 1

    def rows(self, node: int, to: int, n: int, gap_ps: int = 0, cls: int = 1) -> None:
        """Rows from `node` to `to`, one every `gap_ps`."""
        template = self.b.template(Template("row", Kind.PUT, "dispatch", cls=cls, framing=self.framing))
        issuer = self.b.issuer(node, Discipline.PROGRAM_ORDER, interval_ps=gap_ps, name="rows")
        self.b.ops(template, np.full(n, node), issuer=issuer, bytes=ROW, to=To(1, np.full(n, to)))

    def done(self) -> tuple[int, int]:
        """When all bulk bytes, and when all rows have arrived."""
        program = self.b.build()
        verify(program)
        trace = run_oracle(program)
        is_row = np.array([t.name == "row" for t in program.templates])[program.ops.template]
        return int(trace.done[~is_row].max()), int(trace.done[is_row].max(initial=0))


def _both(fill, hardware: Hardware, ack: int = 1) -> list[tuple[int, int]]:
    out = []
    for bulk in (False, True):
        case = Case(bulk, hardware, ack)
        fill(case)
        out.append(case.done())
    return out


COMPETITION = {
    "alone": lambda c: c.send(),
    "rows on the same link out": lambda c: (c.send(), c.rows(0, 2, 300)),
    "some rows on the same link out": lambda c: (c.send(), c.rows(0, 2, 100, 100_000)),
    "rows to the same GPU": lambda c: (c.send(), c.rows(2, 1, 300)),
    "some rows to the same GPU": lambda c: (c.send(), c.rows(2, 1, 200, 50_000)),
    "few rows to the same GPU": lambda c: (c.send(), c.rows(2, 1, 10, 1_000_000)),
    "rows back": lambda c: (c.send(), c.rows(1, 0, 600)),
    "a bulk op back": lambda c: (c.send(), c.send(1, 0)),
    "a bulk op to the same GPU": lambda c: (c.send(), c.send(2, 1)),
    "a bulk op of its class": lambda c: (c.send(), c.send(0, 2)),
    "a bulk op of another class": lambda c: (c.send(), c.send(0, 2, cls=2)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("beside", COMPETITION)
def test_a_bulk_op_takes_the_time_of_its_trains(beside, machine):
    (bulk, rows), (bulk_now, rows_now) = _both(COMPETITION[beside], MACHINES[machine])
    assert bulk_now == pytest.approx(bulk, rel=0.01)
    assert rows_now <= 1.01 * rows  # trains that are all queued at once may hold rows up for longer


@pytest.mark.parametrize("beside", ["rows back", "a bulk op back", "rows to the same GPU"])
def test_it_does_without_acknowledgements_too(beside):
    (bulk, rows), (bulk_now, rows_now) = _both(COMPETITION[beside], MACHINE, ack=0)
    assert (bulk_now, rows_now) == (pytest.approx(bulk, rel=0.01), pytest.approx(rows, rel=0.01))


def test_bulk_ops_of_one_class_go_one_behind_the_other():
    case = Case(bulk=True, ack=0)
    for _ in range(4):
        case.send()
    trace = run_burst(case.b.build())[0]
    assert trace.end / trace.end[0] == pytest.approx([1, 2, 3, 4], rel=0.01)
    assert trace.n_events < 4 * 8


def test_bulk_ops_of_two_classes_share_a_link_train_by_train():
    case = Case(bulk=True)
    case.send()
    case.send(0, 2, SIZE // 4, cls=2)
    trace = run_oracle(case.b.build())
    assert trace.end[1] / trace.end[0] == pytest.approx(0.5 / 1.25, rel=0.01)  # the short op has half of the link until it ends


def test_rows_of_its_class_and_a_bulk_op_take_turns():
    case = Case(bulk=True)
    case.send()
    case.rows(0, 2, 100, cls=0)
    program = case.b.build()
    times = np.sort(run_oracle(program).start[1:])
    np.testing.assert_array_less(0, np.diff(times))
    train, row = (int(program.wires.up[program.ops.wire[op]]) * 1e6 / 450_000 for op in (0, 1))
    assert np.diff(times).mean() == pytest.approx(train + row, rel=0.01)


@pytest.mark.parametrize(("ack", "most"), [(0, 6), (1, 64 * 6)])
def test_an_op_of_any_size_costs_few_events(ack, most):
    for size in (1 << 20, 1 << 28, (1 << 31) - 1):
        case = Case(bulk=True, ack=ack)
        case.send(size=size)
        program = case.b.build()
        trace = run_burst(program)[0]
        assert trace.n_events <= most
        n_bytes = int(program.wires.trains[0] * program.wires.up[0])
        assert trace.done[0] == pytest.approx(n_bytes * 1e6 / 450_000 + 2 * MACHINE.lat + MACHINE.ack, rel=0.1)


def assert_same(program: Program, where: str) -> Counter[str]:
    run = OracleRun(program)
    run.play()
    found, expected = run_burst(program)[0], run.trace()
    assert found.digest() == expected.digest(), where
    table = wire_table(program)
    np.testing.assert_array_equal(table.up.sum(axis=1), found.up_busy, where)
    np.testing.assert_array_equal(table.down.sum(axis=1), found.down_busy, where)
    return run.world.counts


@pytest.mark.slow
def test_engine_equals_oracle_with_bulk_ops():
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        program = random_bulk(seed)
        verify(program)
        seen.update(assert_same(program, f"seed {seed}"))
    for seed in range(3):
        assert_same(crowded_bulk(seed), f"crowded, seed {seed}")
    assert [name for name in MUST_OCCUR if not seen[name]] == []


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 400, 4))
def test_engine_equals_oracle_with_more_bulk_ops(seed):
    for one in range(seed, seed + 4):
        assert_same(random_bulk(one), f"seed {one}")


@pytest.mark.slow
@pytest.mark.parametrize("mutant", BULK_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_of_bulk_ops_are_told_from_the_oracle(mutant):
    assert caught(mutant, range(3), crowded_bulk) or caught(mutant, range(120), random_bulk)


def test_traffic_and_causes_know_all_trains():
    case = Case(bulk=True)
    case.send()
    program = case.b.build()
    trace = run_burst(program)[0]
    assert traffic_bytes(program, trace)["up"]["combine"] == SIZE
    assert sum(attribute(program, trace).values()) == trace.time_ps


def _one(kind: Kind, size: int, **columns) -> Program:
    b = ProgramBuilder(MACHINE, 2)
    template = b.template(Template("big", kind, "combine", framing=b.framing(Framing("store"))))
    b.ops(template, 0, issuer=b.issuer(0, Discipline.READY_FIFO), bytes=size, to=To(1, [1]), **columns)
    return b.build()


@pytest.mark.parametrize("kind", [Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE])
def test_only_puts_are_bulk(kind):
    with pytest.raises(ProgramError, match=f"found 3 trains of a {kind.name}, expected a PUT without table, chain, offset and further bytes"):
        verify(_one(kind, 40_000))


def test_a_train_of_a_bulk_op_fits_a_train():
    program = _one(Kind.PUT, 40_000)
    with pytest.raises(ProgramError, match="bytes of one train: found 20000, expected 0"):
        verify(replace(program, wires=replace(program.wires, trains=np.array([2]))))


def test_others_refuse_bulk_ops_in_one_line():
    program = _one(Kind.PUT, 40_000)
    assert beyond_packets(program) == "found op 0 of 3 trains, expected ops of one train"
    with pytest.raises(ConfigError, match="timeline: found op 0 of 3 trains, expected ops of one train"):
        record(program)


def test_a_bulk_op_over_a_network_pays_for_its_messages():
    net = Net("nic", 50_000, 1_000_000, 0, message_ps=700_000, train_bytes=1 << 20)
    b = ProgramBuilder(MACHINE, 2, nets=(net,))
    template = b.template(Template("big", Kind.PUT, "combine", framing=b.framing(Framing("store", header=0, ack=0, source_ack=0)), net=1))
    _, row, tile = b.regions(1, 1, 8 << 20, 1, alloc=Alloc.PREFIX)
    b.ops(template, 0, issuer=b.issuer(0, Discipline.READY_FIFO), bytes=8 << 20, to=To(1, [1], [1], [row]))
    join = b.ops(b.template(Template("join", Kind.JOIN, "combine")), 1)
    b.edges(Tail.TILE_READY, tile, Head.OP_ISSUE, join)
    program = b.build()
    verify(program)
    trace = run_burst(program)[0]
    assert trace.n_events <= 6
    assert trace.done[1] == pytest.approx(8 * 700_000 + (8 << 20) * 20 + 2_000_000, rel=0.001)
    assert trace.digest() == run_oracle(program).digest()
