"""Merged loads packet by packet: one request of an address reaches the home, every asker is answered, tables overflow packet by packet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.analysis.count import loads_that_went_on
from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import FabricConfig, fabric_of
from dysharp.engine.packet.program import PacketRun, run_packet
from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.tables import Hardware, Head
from dysharp.specs import load_cluster
from dysharp.systems.collectives import get_collective
from dysharp.workload.sublayer import SubLayer
from tests.interpreters.random_loads import random_loads

LAT, RESPONDER, FLIT = 250_000, 500_000, 640
DATA = 9 * FLIT  # header and 128 B


def machine() -> Hardware:
    return Hardware(
        rate=100_000, lat=LAT, ack=2 * LAT, notify=2 * LAT, responder=RESPONDER, local=1, n_vcs=8, vc_bytes=8 * 256 * 16, n_links=4,
    )  # fmt: skip


def loads(askers: list[int], *, places: int = 0, n_bytes: int = 128, addresses: int = 1, after: bool = False, timeout: int = 0) -> Program:
    """Every asker loads every address of node 0; `after`: each only when the asker before has its answer."""
    b = ProgramBuilder(machine(), 4, ("request", "answer"))
    t = b.template(Template("load", Kind.MERGED_LOAD, "other", cls=0, response_cls=1, framing=b.framing(Framing("store"))))
    issuer = np.array([b.issuer(g, Discipline.READY_FIFO) for g in range(4)])
    first = b.loads([0] * addresses, [len(askers)] * addresses, places, timeout)
    node, key = np.repeat(askers, addresses), np.tile(np.arange(addresses), len(askers))
    n = len(node)
    b.ops(t, node, issuer=issuer[node], bytes=n_bytes, key=key, to=To(np.ones(n, int), np.zeros(n, int)), session=first + key)
    if after:
        b.edges(Tail.OP_DONE, np.arange(n - addresses), Head.OP_ISSUE, np.arange(addresses, n))
    return b.build()


def counts(run: PacketRun) -> tuple[int, int]:
    return run.statistics["reduction"]["merged_loads"], run.statistics["reduction"]["bypasses"]


def test_loads_that_come_together_share_one_response() -> None:
    program = loads([1, 2, 3])
    run = run_packet(program)
    assert counts(run) == (2, 0)
    flits = run.statistics["flits"]
    assert (flits["up"]["load"], flits["up"]["response"], flits["down"]["request"]) == (3, 9, 1)
    assert (flits["down"]["response"], flits["down"]["answer"]) == (9, 18)
    # up, to the home, its memory, back to the switch; then every asker's own link
    answered = FLIT + 2 * LAT + RESPONDER + DATA + 2 * LAT
    assert run.trace.done.min() == answered - FLIT + FLIT
    assert run.trace.done.max() - run.trace.done.min() <= 2 * DATA
    assert loads_that_went_on(program, run.trace).sum() == 1


def test_a_late_load_gets_the_cached_response_and_the_last_one_frees_its_place() -> None:
    run = run_packet(loads([1, 2, 3], after=True, places=1))
    assert counts(run) == (2, 0)
    first, second, third = run.trace.done
    assert second - first == third - second == LAT + FLIT * 0 + DATA + LAT  # to the switch and back


@pytest.mark.parametrize(("places", "merged"), [(0, 8), (2, 8), (1, 4)])
def test_loads_pass_a_full_table(places: int, merged: int) -> None:
    """Two addresses of four packets, a packet on each link: one place holds a packet of one address on every port."""
    run = run_packet(loads([1, 2], places=places, addresses=2, n_bytes=512))
    assert counts(run) == (merged, (8 - merged) * 2)
    assert (run.trace.done > 0).all()


def test_an_idle_response_leaves_after_its_timeout() -> None:
    assert counts(run_packet(loads([1, 2, 3], after=True, timeout=1)))[0] == 0
    assert counts(run_packet(loads([1, 2, 3], after=True, timeout=10 * LAT)))[0] == 2


@pytest.mark.slow
def test_random_loads_end_with_everything_back() -> None:
    """Where every load of an address is expected and has a place, bytes are those of the burst level: one load of each address goes on."""
    programs = [program for program in (random_loads(seed, packets=True) for seed in range(60)) if program.sessions is not None and not program.nets]
    assert len(programs) > 15
    passed = 0
    for program in programs:
        run = run_packet(program)
        assert (run.trace.done >= 0).all()
        passed += run.statistics["reduction"]["bypasses"]
        assert program.sessions is not None
        of_load = np.isin(np.arange(len(program.sessions.home)), program.ops.session[program.kinds() == Kind.MERGED_LOAD])
        expected = np.where(of_load, 1 << 20, program.sessions.expected).astype(program.sessions.expected.dtype)
        free = replace(program, sessions=replace(program.sessions, places=0, timeout_ps=0, expected=expected))
        packet, burst = run_packet(free).trace, run_burst(free)[0]
        assert packet.up_busy.tolist() == burst.up_busy.tolist()
        assert packet.down_busy.tolist() == burst.down_busy.tolist()
    assert passed > 0


def test_loads_that_leave_by_several_links_are_refused() -> None:
    with pytest.raises(ConfigError, match="loads of an address that leave by several links"):
        run_packet(loads([1, 2]), FabricConfig(stripe="even"))


@pytest.mark.parametrize("name", ["cais", "cais-partial", "tp-nvls", "tokenweave"])
def test_levels_agree_on_a_sub_layer(name: str) -> None:
    work, cluster, system = SubLayer("small", 4, 2048, 1024, 256, 1024), load_cluster("paper-cais-h100").with_gpus(4), get_collective(name)
    program = system.plan(work, cluster, system.options())
    sessions = {} if "cais" in name else {"reduction_entries": 0}  # the burst level has no table of pulls; the cluster's is the merge table
    packet = run_packet(program, replace(fabric_of(cluster), **sessions)).trace.time_ps
    print(name, f"{packet / run_burst(program)[0].time_ps - 1:+.2%}")
    assert abs(packet / run_burst(program)[0].time_ps - 1) < 0.03
