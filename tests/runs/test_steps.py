"""How far `validate` says that it is."""

from __future__ import annotations

from pathlib import Path

from dysharp.api.validation import validate
from dysharp.runs.progress import Step
from tests.measured.csv_lines import ep_line, write


def test_passes_are_numbered_from_one(tmp_path: Path) -> None:
    steps: list[Step] = []
    low_latency = {"kind": "ep_combine", "system": "DeepEP-LL", "dtype": "bf16", "sms": None}
    validate(write(tmp_path, ep_line("a-1", 8, **low_latency)), progress=steps.append)
    assert {(s.index, s.count, s.stage) for s in steps} == {(1, 1, "predict")}
    assert (steps[-1].done, steps[-1].total) == (1, 1)
