"""The timeline of a merge: every track and tile names its part; tokens and task graphs need one part."""

import sys
from pathlib import Path

import pytest

from dysharp.analysis.timeline import Window, make_timeline, record
from dysharp.analysis.timeline.task_graph import task_graph
from dysharp.base.errors import ConfigError
from dysharp.program.merge import merge

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_timeline_of_a_merge_names_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    from merged_layers import parts

    run, _, _ = record(merge(parts("dysharp", gpus=2, tokens=8)))
    timeline = make_timeline(run, None)
    operators = [track.name for track in timeline.tracks if track.gpu == 0 and track.group == "operators"]
    assert operators == [f"{part}.{name}" for part in "AB" for name in ("dispatch", "gemm1", "gemm2", "combine", "other")]
    assert {"A.gemm1 expert 0", "B.gemm2_dgrad expert 0"} <= set(timeline.names)
    tiles = {int(name.rpartition(" ")[2]) for name in timeline.names if " expert " in name}
    assert max(tiles) < 8  # each part counts its own experts
    with pytest.raises(ConfigError, match="found a Routing or tokens for a merge"):
        make_timeline(run, None, window=Window(tokens=(0,)))
    with pytest.raises(ConfigError, match="task graph: found a merge of Programs"):
        task_graph(run, 4)
