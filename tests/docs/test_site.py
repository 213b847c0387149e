"""The docs as a site: it builds without a warning, every page has a place, and no page asks another server for anything.

`python tests/docs/test_site.py` writes the table of arguments into docs/api.md.

Needs the extra `site` (pip install 'dysharp[site]'), 170 MB; without it the build is skipped and the rest runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from dysharp.runs.request import RequestArgs

ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]*)"|<link[^>]*rel="(?:stylesheet|preload|icon)"[^>]*href="(https?:[^"]*)"')

TABLE = re.compile(r"\| argument \|.*?\n\n", re.DOTALL)


def _arguments() -> str:
    """The table of the arguments of `run` and `compare`, which a decorator adds to them, so that no reader of sources finds them."""
    hints = get_type_hints(RequestArgs, include_extras=True)
    lines = [
        f"| `{name}` | `{hint.__metadata__[0].default!r}` | {hint.__metadata__[0].text.replace('|', chr(92) + '|')} |" for name, hint in hints.items()
    ]
    return "\n".join(["| argument | default | meaning |", "|---|---|---|", *lines]) + "\n\n"


def test_the_table_of_arguments_is_current() -> None:
    assert TABLE.findall((ROOT / "docs" / "api.md").read_text()) == [_arguments()], "write it anew: python tests/docs/test_site.py"


def test_every_page_has_a_place() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    nav = set(re.findall(r"[\w./-]+\.md", text.partition("\nnav:")[2]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert nav == pages


def test_settings_are_read() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "search" in settings["plugins"]
    assert settings["theme"]["font"] is False  # no font of another server


@pytest.mark.slow
def test_the_site_builds_and_fetches_nothing(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason="needs the extra site: pip install 'dysharp[site]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    fetched = {url for page in pages for pair in FETCHED.findall(page.read_text()) for url in pair if url}
    assert fetched == set()
    assert "Simulate one MoE layer under one EP system" in (tmp_path / "api.html").read_text()  # the docstring of run
    assert (tmp_path / "search" / "search_index.json").is_file()


if __name__ == "__main__":
    page = ROOT / "docs" / "api.md"
    page.write_text(TABLE.sub(lambda _: _arguments(), page.read_text()))
