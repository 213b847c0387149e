"""The files beside `docs/design-review.md` show what their commands print, and the page quotes their answers.

`python tests/docs/test_design_review.py` runs the commands and writes their output into the files and the page.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import SETTINGS, cli
from dysharp.show.output import WIDTH

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design-review.md"
FILES = sorted(PAGE.with_suffix("").glob("*.txt"))
CHEAP = "--phase decode"


def blocks() -> list[tuple[str, str]]:
    """(arguments, printed text) of every file."""
    parts = [file.read_text().partition("\n") for file in FILES]
    return [(command.removeprefix("$ dysharp "), text) for command, _, text in parts]


def test_the_page_quotes_the_answers_of_the_files() -> None:
    page = PAGE.read_text()
    assert len(FILES) == 3
    for file in FILES:
        assert f"```text\n{file.read_text().partition(chr(10))[2].partition(chr(10) * 2)[0]}\n```" in page


def test_every_answer_fits_a_screen() -> None:
    for command, text in blocks():
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
    for file, (command, _) in zip(FILES, blocks(), strict=True):
        if any(word in command for word in wanted):
            done = subprocess.run([sys.executable, "-m", "dysharp", *shlex.split(command)], capture_output=True, text=True, check=True)
            _quote(file.read_text(), done.stdout)
            file.write_text(f"$ dysharp {command}\n{done.stdout}")


def _quote(old: str, new: str) -> None:
    """Put the answer of a file, its first paragraph, into the page."""
    answer = old.partition("\n")[2].partition("\n\n")[0]
    PAGE.write_text(PAGE.read_text().replace(f"```text\n{answer}\n```", f"```text\n{new.partition(chr(10) * 2)[0]}\n```"))


if __name__ == "__main__":
    _write()
