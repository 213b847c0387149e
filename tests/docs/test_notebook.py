"""The notebook is dated and never edited: a page keeps the bytes that it had when it came, and the index lists it.

`python tests/docs/test_notebook.py` records the pages that have no line yet; it changes no line that is there.
"""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook"
RECORDED = Path(__file__).with_name("notebook.csv")
_CITING = {".md", ".py", ".csv", ".toml"}


def _digest(page: Path) -> str:
    return hashlib.sha256(page.read_bytes()).hexdigest()


def _recorded() -> dict[str, str]:
    """Page -> SHA-256 of its bytes."""
    with RECORDED.open(encoding="utf-8", newline="") as file:
        return {line["page"]: line["sha256"] for line in csv.DictReader(file)}


def _pages() -> list[Path]:
    return sorted(page for page in NOTEBOOK.glob("*.md") if page.name != "index.md")


def test_pages_have_a_date_and_a_line_in_the_index() -> None:
    index = (NOTEBOOK / "index.md").read_text(encoding="utf-8")
    for page in _pages():
        assert re.match(r"\d{4}-\d\d-\d\d-", page.name), page.name
        assert f"[{page.name[:10]}]({page.name})" in index


def test_no_page_was_edited() -> None:
    found = {page.name: _digest(page) for page in _pages()}
    assert found == _recorded(), "a page of the notebook is never edited: write a new one, and record it: python tests/docs/test_notebook.py"


def test_every_page_is_cited() -> None:
    """Another page, a source file or a test names it; the index and this record do not count."""
    root = NOTEBOOK.parents[1]
    readers = [root / "README.md", root / "VERSIONS.md", *(f for d in ("docs", "dysharp", "tests", "bench") for f in (root / d).rglob("*"))]
    own = {NOTEBOOK / "index.md", RECORDED}
    texts = {file: file.read_text(encoding="utf-8") for file in readers if file.suffix in _CITING and file not in own}
    orphans = [page.name for page in _pages() if not any(page.name in text for file, text in texts.items() if file != page)]
    assert not orphans, "no page cites these"


if __name__ == "__main__":
    new = [page for page in _pages() if page.name not in _recorded()]
    with RECORDED.open("a", encoding="utf-8", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows((page.name, _digest(page)) for page in new)
