"""The output that README.md shows is that of its first command, line by line (lines may be left out)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.slow
def test_readme_shows_what_compare_prints() -> None:
    (shown,) = re.findall(r"^```\n(Fastest .*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    done = CliRunner().invoke(cli, ["compare"], catch_exceptions=False)
    printed = iter(line.rstrip() for line in done.stdout.splitlines())
    assert [line for line in shown.splitlines() if line.rstrip() not in printed] == []  # in the order of the output
