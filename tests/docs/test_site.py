"""The docs as a site: it builds without a warning, every page has a place, and no page asks another server for anything.

`python tests/docs/test_site.py` writes the table of arguments and the tables of names into docs/api.md.

Needs the extra `site` (pip install 'dysharp[site]'), 170 MB; without it the build is skipped and the rest runs.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dysharp
from dysharp.runs.arguments import RequestArgs, arguments_of

ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]*)"|<link[^>]*rel="(?:stylesheet|preload|icon)"[^>]*href="(https?:[^"]*)"')

TABLE = re.compile(r"\| argument \|.*?\n\n", re.DOTALL)
NAMES = re.compile(r"(?:\| name \| is \|\n(?:\|.*\n)+\n)?((?:^::: .*\n)+)", re.MULTILINE)
"""A block of names that the site expands, with the table above it for readers of the plain file."""


def _arguments() -> str:
    """The table of the arguments of `run` and `compare`, which a decorator adds to them, so that no reader of sources finds them."""
    known = arguments_of(RequestArgs).items()
    lines = [f"| `{name}` | `{one.default!r}` | {one.meaning.replace('|', chr(92) + '|')} |" for name, one in known]
    return "\n".join(["| argument | default | meaning |", "|---|---|---|", *lines]) + "\n\n"


def _names(block: str) -> str:
    """A block of names below its table: each name as a user imports it, and the first sentence of its docstring."""
    lines = []
    for path in re.findall(r"^::: (\S+)$", block, flags=re.MULTILINE):
        name = path.rpartition(".")[2]
        text = (inspect.getdoc(pkgutil.resolve_name(path)) or "").partition("\n\n")[0].replace("\n", " ")
        first = re.split(r"(?<=\.) ", text)[0].replace("|", chr(92) + "|")
        lines.append(f"| `{f'dysharp.{name}' if hasattr(dysharp, name) else path}` | {first} |")
    return "\n".join(["| name | is |", "|---|---|", *lines]) + f"\n\n{block}"


def _written(page: str) -> str:
    """The page with its tables anew."""
    return NAMES.sub(lambda match: _names(match[1]), TABLE.sub(lambda _: _arguments(), page))


def test_the_tables_of_names_are_current() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert page.count("| name | is |") >= 5
    assert page == _written(page), "write it anew: python tests/docs/test_site.py"


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
    page.write_text(_written(page.read_text()))
