"""Work beside this process leaves files and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.base import processes
from dysharp.base.processes import beside


def test_work_beside_leaves_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(processes, "may_copy", lambda: True)
    monkeypatch.setattr(processes, "cores", lambda: 2)
    seen: list[int] = []

    def work() -> None:
        seen.append(1)
        (tmp_path / "file").write_text("left")
        raise ValueError("nobody is told")

    with beside(work):
        pass
    assert (tmp_path / "file").read_text() == "left"
    assert not seen
    assert capfd.readouterr() == ("", "")


def test_no_work_beside_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 1)
    seen: list[int] = []
    with beside(lambda: seen.append(1)):
        pass
    assert not seen
