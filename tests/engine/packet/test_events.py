"""Programs packet by packet: idle latency, accounting, determinism, bytes, deadlock, tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ConfigError, SimulationError
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import FabricConfig
from dysharp.engine.packet.program import PacketRun, run_packet
from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Kind, Program, ProgramBuilder, Template, To
from dysharp.program.tables import Edges, Hardware, Tail
from tests.interpreters.random_merges import random_merge
from tests.interpreters.random_programs import random_program
from tests.interpreters.random_sums import random_sums

LAT, RESPONDER, FLIT = 250_000, 500_000, 640
PLANES = 2
STORE, DYNAMIC, EXPLICIT = Framing("store"), Framing("dy", targets_per_ext=8), Framing("ex", address_per_target=1, source_ack_per_target=1)


def machine(**changes: int) -> Hardware:
    values = {
        "rate": 100_000, "lat": LAT, "ack": 2 * LAT, "notify": 2 * LAT, "responder": RESPONDER, "local": 1, "n_vcs": 8,
        "vc_bytes": 8 * 256 * 16, "n_links": 4,
    }  # fmt: skip
    return Hardware(**(values | changes))


def transfers(kind: Kind, framing: Framing, n_ops: int, n_bytes: int = 128, members: int = 1, nodes: int = 4, **changes: int) -> Program:
    """`n_ops` transfers of node 0 to nodes 1 .. `members`."""
    b = ProgramBuilder(machine(**changes), nodes, ("request", "data", "answer"))
    t = b.template(Template("t", kind, "other", cls=0 if kind in (Kind.GET, Kind.PULL_REDUCE) else 1, response_cls=2, framing=b.framing(framing)))
    to = To(np.full(n_ops, members), np.tile(np.arange(1, members + 1), n_ops))
    b.ops(t, np.zeros(n_ops, int), issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=n_bytes, key=np.arange(n_ops), to=to)
    return b.build()


def run(program: Program, **changes: object) -> PacketRun:
    return run_packet(program, FabricConfig(n_planes=PLANES, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Kind.PUT, Kind.SIGNAL, Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE])
@pytest.mark.parametrize("framing", [STORE, DYNAMIC, EXPLICIT], ids=lambda f: f.name)
def test_idle_latency_is_the_sum_of_the_stages(kind: Kind, framing: Framing) -> None:
    members = 3 if kind in (Kind.MULTICAST, Kind.PULL_REDUCE) else 1
    trace = run(transfers(kind, framing, 1, members=members)).trace
    dynamic, ext = framing is DYNAMIC, framing.source_hop_flits(members) - framing.header
    routed = LAT + ext * FLIT + (640 if dynamic else 0)  # the whole target list is read, then one cycle
    turns = (members - 1) // 2  # the reduction unit takes in two packets at a time, so the last of three comes one packet later
    data, listed = 9 * FLIT, framing.source_ack_per_target * (members - 1) * FLIT
    if kind in (Kind.GET, Kind.PULL_REDUCE):
        answered = routed + FLIT + LAT + RESPONDER
        summed = 640 if dynamic and kind is Kind.PULL_REDUCE else 0
        assert trace.member.tolist() == [answered] * members
        assert trace.done[0] == answered + LAT + turns * data + summed + data + listed + LAT
    else:
        visible = routed + data + LAT
        assert trace.member.tolist() == [visible] * members
        assert trace.done[0] == visible + LAT + turns * FLIT + FLIT + listed + LAT


def test_a_table_miss_and_a_list_fetch_add_their_latency_once() -> None:
    program = transfers(Kind.MULTICAST, DYNAMIC, 2, members=1)
    free = run(program).trace.done
    fetched = run(program, queue_entries=1, fetch_ps=30_000).trace.done
    assert fetched[0] == free[0]
    assert fetched[1] >= 30_000 + free[0] - 10  # the second one waits for the entry of the first


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 2, 3))])
def test_random_programs_end_with_everything_back_and_the_bytes_of_the_burst_level(chunk: int) -> None:
    programs = {seed: random_program(seed) for seed in range(chunk * 120, chunk * 120 + 120)}
    of_one_network = {seed: program for seed, program in programs.items() if not program.nets}  # others are refused
    assert len(of_one_network) > 20
    for seed, program in of_one_network.items():
        run, burst = run_packet(program), run_burst(program)[0]  # run_packet itself checks credits, records, tables and flits
        assert (run.trace.done >= 0).all(), seed
        assert run.trace.up_busy.tolist() == burst.up_busy.tolist(), seed
        assert run.trace.down_busy.tolist() == burst.down_busy.tolist(), seed


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_sums_end_with_everything_back(chunk: int) -> None:
    """With a place for every sum the bytes are those of the burst level. Without, whole sums pass there and single packets here."""
    programs = [random_sums(seed, packets=True) for seed in range(chunk * 80, chunk * 80 + 80)]
    programs = [program for program in programs if program.sessions is not None and not program.nets]
    assert len(programs) > 15
    passed = 0
    for program in programs:
        run = run_packet(program)
        assert (run.trace.done >= 0).all()
        passed += run.statistics["reduction"]["bypasses"]
        assert program.sessions is not None
        free = replace(program, sessions=replace(program.sessions, places=0))
        run, burst = run_packet(free), run_burst(free)[0]
        assert run.statistics["reduction"]["bypasses"] == 0
        assert run.trace.up_busy.tolist() == burst.up_busy.tolist()
        assert run.trace.down_busy.tolist() == burst.down_busy.tolist()
    assert passed > 0


@pytest.mark.slow
def test_merges_end_with_everything_back_and_the_bytes_of_the_burst_level() -> None:
    """Two of three have no sums in the switch and no place to wait for."""
    programs = [program for program in (random_merge(seed, packets=True) for seed in range(24)) if not program.nets]
    assert len(programs) > 5
    for program in programs:
        run, burst = run_packet(program), run_burst(program)[0]
        assert (run.trace.done >= 0).all()
        if program.sessions is None or not program.sessions.places:
            assert run.trace.up_busy.tolist() == burst.up_busy.tolist()
            assert run.trace.down_busy.tolist() == burst.down_busy.tolist()


@pytest.mark.parametrize("changes", [{"stripe": "even"}, {}])
def test_contributions_that_leave_by_several_links_are_refused(changes: dict[str, str]) -> None:
    program = next(p for p in (random_sums(seed, packets=bool(changes)) for seed in range(1, 400, 2)) if p.sessions is not None and not p.nets)
    plain = program.edges.tail_kind != Tail.MEMBER_DELIVERED
    edges = Edges(*(column[plain] for column in (program.edges.tail_kind, program.edges.tail, program.edges.head_kind, program.edges.head)))
    with pytest.raises(ConfigError, match="that leave by several links, expected one key and size"):
        run_packet(replace(program, edges=edges), FabricConfig(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [2, 56, 57])  # of one network
def test_two_runs_give_one_digest(seed: int) -> None:
    program = random_program(seed)
    first, second = run_packet(program), run_packet(program)
    assert first.trace.digest() == second.trace.digest()
    assert first.statistics == second.statistics


def both_ways(**changes: object) -> PacketRun:
    b = ProgramBuilder(machine(rate=100_000, lat=10_000, responder=5_000, n_vcs=1, vc_bytes=256, n_links=1), 2, ("data",))
    t = b.template(Template("get", Kind.GET, "other", framing=b.framing(STORE)))
    for gpu in range(2):
        to = To(np.ones(50, int), np.full(50, 1 - gpu))
        b.ops(t, np.full(50, gpu), issuer=b.issuer(gpu, Discipline.READY_FIFO), bytes=1024, to=to)
    return run_packet(b.build(), FabricConfig(answer_entries=2, **changes))  # type: ignore[arg-type]


def test_requests_and_answers_on_one_channel_deadlock_and_the_cycle_is_named() -> None:
    assert both_ways().statistics["stalls"]["answer_queue"] > 0
    with pytest.raises(SimulationError, match=r"deadlock at .*\.up waits for gpu\[\d\]\.link\[0\] switch buffer VC 0 waits for .*hub buffer"):
        both_ways(channels="one")


def test_evictions_cost_exactly_their_extra_packets() -> None:
    program = transfers(Kind.PULL_REDUCE, DYNAMIC, 300, members=3, lat=20_000, responder=20_000)
    whole, evicted = run(program), run(program, reduction_entries=2)
    table = evicted.statistics["reduction"]
    assert table["evictions"] > 0
    assert table["sessions"] == table["results"] + table["evictions"] == 300
    extra = 9 * (2 * table["partial_sums"] + table["bypasses"] - table["evictions"])
    assert (evicted.trace.down_busy[0] - whole.trace.down_busy[0]) // 16 == extra
    assert evicted.trace.up_busy.tolist() == whole.trace.up_busy.tolist()
    assert (evicted.trace.done >= 0).all()


def test_sessions_leave_after_their_timeout_and_nothing_is_lost() -> None:
    program = transfers(Kind.PULL_REDUCE, STORE, 50, members=3)
    table = run(program, reduction_timeout_ps=100_000).statistics["reduction"]
    assert table["timeouts"] == 50  # the responder alone takes longer
    assert table["bypasses"] == 150


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of rotating, even, hash"):
        FabricConfig(stripe="spread")
    with pytest.raises(ConfigError, match="expected at least 1"):
        FabricConfig(n_planes=0)


def crossing_traffic(acks: str) -> PacketRun:
    """Two GPUs that store to each other without a pause: every acknowledgement meets rows on both of its links."""
    b = ProgramBuilder(machine(n_links=1, vc_bytes=0), 2, ("data",))
    t = b.template(Template("put", Kind.PUT, "other", framing=b.framing(STORE)))
    for gpu in range(2):
        to = To(np.ones(40, int), np.full(40, 1 - gpu))
        b.ops(t, np.full(40, gpu), issuer=b.issuer(gpu, Discipline.READY_FIFO), bytes=4096, key=np.arange(40), to=to)
    return run_packet(b.build(), FabricConfig(acks=acks))


def test_acknowledgements_wait_for_their_turn_or_go_first() -> None:
    """First: each waits for at most one packet on its up link and one on its down link (9 flits), as at burst level for none."""
    turns, first = crossing_traffic("turns").trace, crossing_traffic("first").trace
    waits = [t.done - t.member - 2 * LAT for t in (turns, first)]
    flit_ps = 16 * 1_000_000 // machine(n_links=1).rate
    assert waits[1].max() <= (2 * 9 + 2) * flit_ps  # two packets before it, and its own flit on both links
    assert waits[0].mean() > waits[1].mean()
    assert turns.up_busy.tolist() == first.up_busy.tolist()
    assert turns.down_busy.tolist() == first.down_busy.tolist()
