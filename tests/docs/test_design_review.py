"""`docs/design-review.md` and the files beside it show what their commands print.

`python tests/docs/test_design_review.py` runs the commands and writes their output into the page and the files.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import SETTINGS, cli
from dysharp.cli.output import WIDTH

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design-review.md"
FILES = sorted(PAGE.with_suffix("").glob("*.txt"))
BLOCK = re.compile(r"^```\n\$ dysharp (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
CHEAP = "--phase decode"


def blocks() -> list[tuple[str, str]]:
    """(arguments, printed text) of every command of the page, then of the files."""
    return BLOCK.findall(PAGE.read_text()) + [block for file in FILES for block in BLOCK.findall(f"```\n{file.read_text()}```")]


def test_the_page_quotes_the_answers_of_the_files() -> None:
    page = PAGE.read_text()
    assert len(FILES) == 2
    for file in FILES:
        assert f"```text\n{file.read_text().partition(chr(10))[2].partition(chr(10) * 2)[0]}\n```" in page


def test_every_answer_fits_a_screen() -> None:
    found = blocks()
    assert len(found) >= 3
    for command, text in found:
        assert max(map(len, text.splitlines())) <= WIDTH, command
        assert len(text.splitlines()) <= 40, command
        assert text.startswith("Run "), command


def test_every_command_is_known() -> None:
    for command, _ in blocks():
        name, *rest = shlex.split(command)
        made = cli.commands[name].make_context(name, rest, **SETTINGS)
        assert made.params["model"]


@pytest.mark.slow
def test_the_cheap_answer_is_current() -> None:
    command, text = next(block for block in blocks() if CHEAP in block[0])
    done = CliRunner().invoke(cli, shlex.split(command))
    assert done.exit_code == 0
    assert done.stdout == text  # the header on stderr is for people who wait


def _write() -> None:
    """Run the commands that contain one of the arguments, or all, and replace each output as soon as it is there."""
    wanted = sys.argv[1:] or [""]
    for command, _ in blocks():
        if any(word in command for word in wanted):
            done = subprocess.run([sys.executable, "-m", "dysharp", *shlex.split(command)], capture_output=True, text=True, check=True)
            for file in FILES:
                if file.read_text().startswith(f"$ dysharp {command}\n"):
                    _quote(file.read_text(), done.stdout)
                    file.write_text(f"$ dysharp {command}\n{done.stdout}")
            page = re.sub(rf"^```\n\$ dysharp {re.escape(command)}\n(?:.*\n)*?```$", lambda _: "@@", PAGE.read_text(), flags=re.MULTILINE)
            PAGE.write_text(page.replace("@@", f"```\n$ dysharp {command}\n{done.stdout}```"))


def _quote(old: str, new: str) -> None:
    """Put the answer of a file, its first paragraph, into the page."""
    answer = old.partition("\n")[2].partition("\n\n")[0]
    PAGE.write_text(PAGE.read_text().replace(f"```text\n{answer}\n```", f"```text\n{new.partition(chr(10) * 2)[0]}\n```"))


if __name__ == "__main__":
    _write()
