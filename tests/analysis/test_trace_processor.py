"""Perfetto's own reader finds in a timeline what the run has: sums per track, busy times of the Row, whole flows."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import dysharp
from dysharp.api.timed import Timed
from dysharp.base.errors import ConfigError
from tests.analysis.trace_processor import opened, viewer_folder

try:
    viewer_folder()
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SLICES = """
select cast(substr(process.name, 5) as int) as gpu, grp.name as grp, track.name as track, sum(slice.dur) as ps
from slice join track on slice.track_id = track.id join track grp on track.parent_id = grp.id
join process_track on process_track.id = track.id join process using (upid)
group by slice.track_id
"""
FLOWS = """
select a.ts as a_ts, a_track.name as a_track, a.name as a_name, b.ts as b_ts, b_track.name as b_track, b.name as b_name
from flow join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id
join track a_track on a.track_id = a_track.id join track b_track on b.track_id = b_track.id
"""


def _agrees(done: Timed, processor: Any) -> None:
    """Errors, sums of tracks, the Row's busy times, and each step of each flow."""
    line, row = done.timeline, done.row
    assert processor.query("select name from stats where severity != 'info' and value > 0") == []
    read = {(r.gpu, r.grp, r.track): r.ps for r in processor.query(SLICES)}
    written = {(t.gpu, t.group, t.name): ps for t, ps in zip(line.tracks, line.sums_ps().tolist(), strict=True) if ps}
    assert read == written
    for side in ("up", "down"):
        busy = [sum(ps for (gpu, group, _), ps in read.items() if (gpu, group) == (node, f"{side} link")) for node in range(line.n_gpus)]
        exact = row.utilization[side] * line.time_ps * line.n_gpus
        assert -1e-3 <= exact - sum(busy) < line.n_gpus + 1e-3  # a link loses less than a picosecond
    phases = {name: round(phase["busy"] * 1e6) for name, phase in row.phases_us.items() if phase["busy"]}
    assert any({name: read.get((gpu, "operators", name)) for name in phases} == phases for gpu in range(line.n_gpus))
    s = line.slices

    def place(i: int) -> tuple[int, str, str]:
        return int(s.start[i]), line.tracks[s.track[i]].name, line.names[s.name[i]]

    steps = {(*place(a), *place(b)) for flow in line.flows for a, b in pairwise(flow.slices)}
    found = [(r.a_ts, r.a_track, r.a_name, r.b_ts, r.b_track, r.b_name) for r in processor.query(FLOWS)]
    assert set(found) == steps
    assert len(found) == sum(len(flow.slices) - 1 for flow in line.flows)


@pytest.mark.parametrize("system", ["dysharp", "moe-hub", *(pytest.param(name, marks=pytest.mark.slow) for name in ("deepep", "comet"))])
def test_sums_and_flows(system: str, tmp_path: Path) -> None:
    done = dysharp.trace(system, gpus=4, tokens=64)
    with opened(done.save(tmp_path / "run.perfetto-trace")) as processor:
        _agrees(done, processor)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.perfetto-trace"
    file.write_text("no trace at all")
    with pytest.raises(ValueError, match="perfetto-trace"), opened(file):
        pass


def _room(n_bytes: int, wait_s: int = 600) -> bool:
    """Whether the computer has so much free memory, now or when tests beside this one have ended."""
    meminfo = Path("/proc/meminfo")
    for _ in range(wait_s // 10):
        if not meminfo.exists() or int(meminfo.read_text().split("MemAvailable:")[1].split()[0]) * 1024 >= n_bytes:
            return True
        time.sleep(10)
    return False


@pytest.mark.long
def test_the_headline_layer(tmp_path: Path) -> None:
    """L-8 on 32 GPUs with 8192 tokens: a million slices."""
    if not _room(6 << 30):
        pytest.skip("found less than 6 GiB of free memory")
    done = dysharp.trace("dysharp", model="L-8", gpus=32, routing="uniform")
    with opened(done.save(tmp_path / "l8.perfetto-trace")) as processor:
        _agrees(done, processor)
