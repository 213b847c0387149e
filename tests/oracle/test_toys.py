"""One token and one tile of every mechanism, added up by hand; see toy.py for the machine (1 byte = 1 ps).

`python tests/oracle/test_toys.py` writes the op tables beside docs/design/0002.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from op_table import COLUMNS, op_lines
from toy import HARDWARE, REQUEST, TILE_PS, WIRE
from toys import TOYS

from dysharp.engine.burst.lower import _unsupported
from dysharp.oracle import run_oracle
from dysharp.program.trace import Trace

LAT, ACK_PS, RESPOND, NOTIFY = HARDWARE.lat, HARDWARE.ack, HARDWARE.responder, HARDWARE.notify
PUSHED = LAT + WIRE + LAT  # a row until it is visible
PUT = PUSHED + ACK_PS  # until its source knows
WORD = LAT + 32 + LAT + ACK_PS  # the same for a word of one packet
PULLED = REQUEST + LAT + LAT + RESPOND + LAT + WIRE + LAT
DESIGN = Path(__file__).parents[2] / "docs" / "design"
MECHANISMS = DESIGN / "0002-mechanisms.csv"
OP_TABLES = DESIGN / "0002-op-tables.csv"


def play(name: str) -> Trace:
    return run_oracle(TOYS[name]())


def op_tables() -> str:
    """The op tables of all toys as one CSV: name of the toy, then the columns of `op_lines`."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["mechanism", *COLUMNS])
    for name, build in TOYS.items():
        lines.writerows([name, *line] for line in op_lines(build()))
    return out.getvalue()


def test_op_tables_are_current():
    assert OP_TABLES.read_text(encoding="utf-8") == op_tables(), "write them anew: python tests/oracle/test_toys.py"


@pytest.mark.parametrize("name", sorted(TOYS))
def test_the_list_says_what_the_program_shows_and_whether_the_engine_runs_it(name):
    runs_on = "oracle" if _unsupported(TOYS[name]()) else "oracle and engine"
    with MECHANISMS.open(encoding="utf-8", newline="") as file:
        assert [name, TOYS[name].__doc__, runs_on] in [line[:3] for line in csv.reader(file)]


@pytest.mark.parametrize("name", sorted(TOYS))
def test_runs_are_repeatable(name):
    assert play(name).digest() == play(name).digest()


def test_dysharp():
    assert play("dysharp").time_ps == PUSHED + 2 * TILE_PS + NOTIFY + PULLED


def test_deepep_rings():
    trace = play("deepep_rings")
    dispatched = WORD + 3000 + WORD
    copied = dispatched + PUSHED + 1000
    assert trace.done[5] == copied
    assert trace.time_ps == copied + TILE_PS + PUT


def test_deepep_ll_waits_for_the_count_behind_the_row():
    trace = play("deepep_ll")
    assert trace.ready[2] == PUT + 32
    assert trace.time_ps == PUT + 32 + TILE_PS + PUT


def test_nvls():
    trace = play("nvls")
    barrier = PUSHED + TILE_PS + WORD + 32  # both words share the link of node 0
    assert trace.done[7] == barrier
    assert trace.time_ps == barrier + PULLED


def test_comet_spins_on_its_slot():
    trace = play("comet")
    gathered = PULLED + HARDWARE.local
    assert trace.start[4] == gathered
    # The slot stays with the spinning chain although other work is ready from the start.
    assert trace.start[3] == gathered + TILE_PS


def test_ccfuser_blocks_on_its_get():
    trace = play("ccfuser")
    chain_ends = WORD + PULLED + TILE_PS + PUT
    assert trace.done[3] == chain_ends
    assert trace.start[4] == chain_ends


def test_chunks_overlap():
    trace = play("fastermoe_tutel_chunks")
    assert trace.start.tolist()[:3] == [0, WIRE, PUT]
    assert trace.time_ps == PUT + 2 * TILE_PS + PUT


def test_dualpipe_computes_one_while_the_other_travels():
    trace = play("dualpipe_merge")
    assert trace.start[5] == PUT + TILE_PS  # mlp(F) right behind mlp(B)
    assert trace.start[7] == PUT + TILE_PS + PUT


def test_moe_hub_starts_at_visibility_and_cancels_the_surplus_tile():
    trace = play("moe_hub")
    assert trace.start[5] == PUSHED
    assert trace.done[6] == trace.done[7] == -1
    assert trace.time_ps == PUSHED + TILE_PS + PUT
    # Round robin has one destination; inside it the .nop packet goes last.
    assert np.argsort(trace.start[:3]).tolist() == [0, 2, 1]


def test_cais_asks_the_home_once_and_adds_on_the_way():
    trace = play("cais")
    assert trace.done[3] == trace.done[6] == PULLED
    assert trace.done[5] == trace.done[8] == PULLED + TILE_PS + PUT
    # Home: two responses would be twice the wire; one answer goes up, one request and one sum come down.
    assert trace.up_busy[0] == WIRE + 128
    assert trace.down_busy[0] == REQUEST + WIRE


def test_t3_adds_in_memory():
    trace = play("t3")
    assert trace.done[5] == TILE_PS + HARDWARE.local + PUSHED


def test_nccl_ring_passes_on_what_is_visible():
    trace = play("nccl_ring")
    assert trace.start[1] == PUSHED
    assert trace.tile_ready.tolist() == [PUSHED, 2 * PUSHED]


if __name__ == "__main__":
    OP_TABLES.write_text(op_tables(), encoding="utf-8")
