"""`docs/design-review.md` shows what its commands print.

`python tests/docs/test_design_review.py` runs the commands and writes their output into the page.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli
from dysharp.cli.output import WIDTH

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design-review.md"
BLOCK = re.compile(r"^```\n\$ dysharp (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
CHEAP = "--phase decode"


def blocks() -> list[tuple[str, str]]:
    """(arguments, printed text) of every command of the page."""
    return BLOCK.findall(PAGE.read_text())


def test_every_answer_fits_a_screen() -> None:
    found = blocks()
    assert len(found) >= 4
    for command, text in found:
        assert max(map(len, text.splitlines())) <= WIDTH, command
        assert len(text.splitlines()) <= 40, command
        assert text.startswith("Run "), command


def test_every_command_is_known() -> None:
    for command, _ in blocks():
        name, *rest = shlex.split(command)
        made = cli.commands[name].make_context(name, rest)
        assert made.params["model"]


@pytest.mark.slow
def test_the_cheap_answer_is_current() -> None:
    command, text = next(block for block in blocks() if CHEAP in block[0])
    done = CliRunner().invoke(cli, shlex.split(command))
    assert done.exit_code == 0
    assert done.output == text


def _write() -> None:
    def printed(block: re.Match[str]) -> str:
        done = subprocess.run([sys.executable, "-m", "dysharp", *shlex.split(block[1])], capture_output=True, text=True, check=True)
        return f"```\n$ dysharp {block[1]}\n{done.stdout}```"

    wanted = sys.argv[1:]
    text = PAGE.read_text()
    for block in list(BLOCK.finditer(text)):
        if not wanted or any(word in block[1] for word in wanted):
            text = text.replace(block[0], printed(block))
    PAGE.write_text(text)


if __name__ == "__main__":
    _write()
