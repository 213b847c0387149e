"""Head-of-line blocking: an incast slows a flow that only shares its source, but only in finite buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Discipline, Hardware, Kind, Program, ProgramBuilder, Template, To, with_hardware
from dysharp.program.verify import verify

HARDWARE = Hardware(rate=450_000, lat=10_000, ack=20_000, notify=500_000, responder=500_000, local=500_000, n_vcs=1, vc_bytes=32_768, n_links=18)
HOT, SHARED, VICTIM, N = 0, 1, 7, 8  # node 1 sends to the hot node 0 and to node 7, in turn
TRAINS, ROW = 64, 4096


def incast(crowd: bool, hardware: Hardware) -> tuple[Program, np.ndarray]:
    """The Program and its victim ops; `crowd`: nodes 2 to 6 send to the hot node as well."""
    b = ProgramBuilder(hardware, N)
    put = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store"))))
    issuers = [b.issuer(n, Discipline.PROGRAM_ORDER) for n in range(N)]
    to = np.tile([HOT, VICTIM], TRAINS)
    first = b.ops(put, np.full(2 * TRAINS, SHARED), issuer=issuers[SHARED], bytes=ROW, to=To(np.ones(2 * TRAINS, int), to))
    for node in range(2, 7) if crowd else ():
        b.ops(put, np.full(TRAINS, node), issuer=issuers[node], bytes=ROW, to=To(np.ones(TRAINS, int), np.full(TRAINS, HOT)))
    program = b.build()
    verify(program)
    return program, first + np.flatnonzero(to == VICTIM)


@pytest.mark.parametrize("run", [lambda p: run_burst(p)[0], run_oracle], ids=["engine", "oracle"])
def test_incast_slows_the_victim_only_with_finite_buffers(run):
    def arrivals(crowd: bool, hardware: Hardware) -> np.ndarray:
        program, victim = incast(crowd, hardware)
        return run(program).member[program.members.ptr[victim]]

    infinite = replace(HARDWARE, vc_bytes=0)
    assert arrivals(True, infinite).tolist() == arrivals(False, infinite).tolist()
    slow, alone = arrivals(True, HARDWARE), arrivals(False, HARDWARE)
    assert (slow >= alone).all()
    # Alone the source sends 128 trains; in the incast its last one waits for 6 x 64 trains to the hot node.
    assert slow[-1] > 2.9 * alone[-1]
    assert alone.tolist() == arrivals(False, infinite).tolist()


def test_engine_and_oracle_agree_on_the_incast():
    program, _ = incast(True, HARDWARE)
    for hardware in (HARDWARE, replace(HARDWARE, vc_bytes=0)):
        other = with_hardware(program, hardware)
        assert run_burst(other)[0].digest() == run_oracle(other).digest()
