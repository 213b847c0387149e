"""The two questions of docs/studies.md: their commands give the answers on the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").partition("## Two questions")[2]
BLOCKS = re.findall(r"```\n\$ dysharp (study .*?)\n\$ dysharp (query \".*?\" --folder \S+)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("study", "query", "answer"), BLOCKS, ids=["al-tlb", "links"])
def test_a_question_has_the_answer_of_the_page(study: str, query: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, shlex.split(study)).exit_code == 0
    done = CliRunner().invoke(cli, shlex.split(query))
    assert done.exit_code == 0, done.output
    assert [line.split() for line in done.stdout.splitlines()] == [line.split() for line in answer.splitlines()]
