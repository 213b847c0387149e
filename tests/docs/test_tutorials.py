"""Tutorials: every `$ dysharp` block prints what the page shows, in a folder that has the files that the page shows."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\S*)(?: title=\"([^\"\n]*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUICK, SLOW = ("calibrate",), ("first-comparison", "table-sizes", "timeline")


def _command(text: str) -> tuple[list[str], str]:
    """The words of the command at the begin of a block, which ends with the line that closes its quotes; and what it prints."""
    lines = text.removeprefix("$ dysharp ").splitlines(keepends=True)
    for n in range(1, len(lines) + 1):
        try:
            return shlex.split("".join(lines[:n])), "".join(lines[n:])
        except ValueError:
            continue
    raise AssertionError(f"no whole command: {text}")


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("page", [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW)])
def test_a_tutorial_prints_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    n_commands = 0
    for _, title, text in BLOCK.findall((DOCS / f"{page}.md").read_text()):
        if title:
            (tmp_path / title).write_text(text)
        if text.startswith("$ dysharp "):
            words, expected = _command(text)
            done = CliRunner().invoke(cli, words, catch_exceptions=False)
            found = _without_trailing_spaces(done.stdout)
            assert doctest.OutputChecker().check_output(expected, found, doctest.ELLIPSIS), f"{shlex.join(words)}\n{found}"
            n_commands += 1
    assert n_commands
