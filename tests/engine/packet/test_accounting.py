"""What the packet level counts: waits for banks and for target lists, by hand, and the check of a drained fabric."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.base.errors import SimulationError
from dysharp.engine.burst.run import run_burst_counted
from dysharp.engine.packet import program as packet_program
from dysharp.engine.packet.fabric import FabricConfig, build
from dysharp.engine.packet.program import run_packet
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Discipline, HubTable, Kind, Program, ProgramBuilder, Template, To
from dysharp.program.tables import Hardware

LAT, FETCH_PS, BANK_PS = 250_000, 30_000, 1_000_000
HARDWARE = Hardware(
    rate=100_000, lat=LAT, ack=2 * LAT, notify=2 * LAT, responder=500_000, local=1, n_vcs=8, vc_bytes=8 * 256 * 16, n_links=4,
)  # fmt: skip


def stores(sources: list[int], to: int = 1, *, asks: bool = False) -> Program:
    """Each source sends one row of 128 bytes to its own row of node `to`, which asks its AL TLB if `asks`."""
    n = len(sources)
    b = ProgramBuilder(HARDWARE, 4, ("request", "data", "answer"))
    framing = b.framing(Framing("dy", targets_per_ext=8))
    table = b.table(HubTable("al_tlb", 8, 8, 500_000)) if asks else -1
    t = b.template(Template("send", Kind.MULTICAST, "dispatch", cls=1, response_cls=2, framing=framing, table=table))
    b.regions([to], [n], 128, 1, alloc=Alloc.FIRST_TOUCH, key=list(range(n)), name="expert")
    issuers = {s: b.issuer(s, Discipline.PROGRAM_ORDER) for s in dict.fromkeys(sources)}
    b.ops(t, np.array(sources), issuer=[issuers[s] for s in sources], bytes=128, to=To([1] * n, [to] * n, [1] * n, list(range(n))))
    return b.build()


@pytest.mark.parametrize(("banks", "waits", "mean_ns"), [(0, 0, 0.0), (1, 1, BANK_PS / 1e3 / 2), (2, 0, 0.0)])
def test_two_lookups_at_once_share_the_banks(banks: int, waits: int, mean_ns: float) -> None:
    """Two GPUs' rows reach one hub at the same time. With one bank the second waits a whole turn; rows 0 and 1 use different banks of two."""
    run = run_packet(stores([0, 2], asks=True), FabricConfig(al_entries=8, al_mshrs=8, al_banks=banks, al_bank_ps=BANK_PS))
    table = run.statistics["al_tlb"]
    assert (table["lookups"], table["bank_waits"], table["bank_wait_ns_mean"]) == (2, waits, mean_ns)


@pytest.mark.parametrize(("entries", "waits"), [(0, 0), (1, 1), (2, 0)])
def test_a_second_list_waits_for_the_entry_of_the_first(entries: int, waits: int) -> None:
    """Both leave at time 0 on links of their own. With one entry the second waits for one fetch, and nothing else is counted as a wait."""
    run = run_packet(stores([0, 0]), FabricConfig(n_planes=2, queue_entries=entries, fetch_ps=FETCH_PS))
    assert run.statistics["stalls"] == dict.fromkeys(run.statistics["stalls"], 0) | {"target_fetch": waits}
    assert run.statistics["stalls_us"]["target_fetch"] == waits * FETCH_PS / 1e6
    assert run.trace.done[1] - run.trace.done[0] == waits * FETCH_PS


def halves(n_rows: int, entries: int) -> Program:
    """Node 0 sends the first halves of `n_rows` rows of 256 bytes to node 1, then the second halves. They ask a row table."""
    b = ProgramBuilder(HARDWARE, 2, ("request", "data", "answer"))
    framing, table = b.framing(Framing("store")), b.table(HubTable("rat", entries, 8, 500_000, allocates=True))
    t = b.template(Template("send", Kind.PUT, "dispatch", cls=1, response_cls=2, framing=framing, table=table))
    b.regions([1], [n_rows], 256, 1, alloc=Alloc.FIRST_TOUCH, key=list(range(n_rows)), name="expert")
    rows, issuer = np.tile(np.arange(n_rows), 2), b.issuer(0, Discipline.PROGRAM_ORDER)
    ones = [1] * len(rows)
    b.ops(t, np.zeros(len(rows), int), issuer=issuer, bytes=128, to=To(ones, ones, ones, rows.tolist()))
    return b.build()


@pytest.mark.parametrize(("entries", "reads"), [(0, 0), (2, 0), (1, 1)])
def test_a_row_that_was_spilled_is_read_before_its_second_packet(entries: int, reads: int) -> None:
    """Two rows, two packets each. With one entry the second row spills the first one, whose second packet reads it back."""
    links, late = FabricConfig(stripe="even"), reads * 500_000
    run, free = run_packet(halves(2, entries), links), run_packet(halves(2, 0), links)
    table = run.statistics["al_tlb"]
    assert (table["lookups"], table["allocated"], table["misses"], table["evictions"]) == (4, 2, reads, reads)
    assert (run.trace.member - free.trace.member).tolist() == [0, 0, late, 0]
    trace, _, counted = run_burst_counted(halves(2, entries))
    assert (counted.rows, counted.reads) == (2, 2 * reads)  # the row comes back when it asks, so it spills the other one
    assert trace.member[2] - run_burst_counted(halves(2, 0))[0].member[2] == late


def test_a_fabric_that_is_not_drained_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(program: Program, config: FabricConfig) -> object:
        state, fabric = build(program, config)
        fabric.lanes.held[5] = 1  # a flit that nobody sent lies in the buffer of node 1's second link
        return state, fabric

    monkeypatch.setattr(packet_program, "build", leaking)
    with pytest.raises(SimulationError, match=r"drained fabric: gpu\[1\]\.link\[1\] still holds flits in the buffer of its hub"):
        run_packet(stores([0, 2]))
