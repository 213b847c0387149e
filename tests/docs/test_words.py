"""The pages name only what ships: links resolve, no page points to a file outside the repository, the glossary's names exist."""

from __future__ import annotations

import contextlib
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("dysharp/**/README.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
OUTSIDE = re.compile(r"(?<![\w/.-])(?:spec|shared)/[\w.]+|\b(?:spec|design) section \d|\bhouse_style\b")
"""Notes that the project was written from; no clone has them."""
NOTES = re.compile(rf"{OUTSIDE.pattern}|\bdecisions? [\d, and]+ of section|\brule \d+\.\d|\bprotocol P\d|\bhouse style section")
"""The notes, and numbers of their decisions, rules and protocols."""
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "dysharp").rglob("*.py")))
MOVED = {ROOT / "dysharp" / "data" / "README.md": ROOT / "dysharp" / "measured" / "data" / "README.md"}
"""Files that moved after a page of the notebook, which is never edited, had linked them."""


def slug(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    return {slug(title) for title in re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)}


def broken(page: Path, root: Path = ROOT) -> list[str]:
    """Links of `page` that lead to no file under `root`, or to no heading of a Markdown page."""
    bad = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if page.parent.name == "notebook":
            target = MOVED.get(target, target)
        inside = target.is_relative_to(root)
        if not inside or not target.exists() or (anchor and anchor not in anchors(target)):
            bad.append(link)
    return bad


def names() -> list[str]:
    """The names in the column "in code" of the glossary."""
    column = [line.split(" | ")[2] for line in GLOSSARY.read_text().splitlines() if line.count(" | ") == 3]
    return sorted({name for cell in column for name in re.findall(r"`([^`]+)`", cell)})


def is_defined(name: str) -> bool:
    """Whether a name that begins with a folder resolves by import; else whether the package defines its last part."""
    folder, *parts = name.split(".")
    if parts and (ROOT / "dysharp" / folder).is_dir():
        with contextlib.suppress(ImportError, AttributeError):
            return bool(pkgutil.resolve_name(f"dysharp.{name}"))
        return False
    last = parts[-1] if parts else folder
    modules = [*(ROOT / "dysharp").rglob(f"{last}.py"), *(ROOT / "dysharp").rglob(f"{last}/__init__.py")]
    return bool(modules) or last == "dysharp" or bool(re.search(rf"(?:class|def) {last}\b|\b{last}\b\"?(?:: | = |=)", SOURCES))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_resolve(page: Path) -> None:
    assert broken(page) == []


def is_dated(page: Path) -> bool:
    """Whether a page tells what was at a time and is never edited: it names files as they were called then."""
    return page.name == "VERSIONS.md" or page.parent.name == "notebook"


def missing_paths(page: Path) -> list[str]:
    """Paths in backticks under `dysharp/` or `tests/` that do not exist."""
    paths = re.findall(r"`((?:dysharp|tests)/[\w./-]*)`", page.read_text())
    return [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", [page for page in PAGES if not is_dated(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_backticks_exist(page: Path) -> None:
    assert missing_paths(page) == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_page_names_a_file_that_does_not_ship(page: Path) -> None:
    assert OUTSIDE.findall(page.read_text()) == []


def test_no_page_has_a_mark_of_a_merge() -> None:
    mark = re.compile(r"^(<<<<<<<|=======|>>>>>>>)( |$)", re.MULTILINE)
    marked = [name for name, page in zip(IDS, PAGES, strict=True) if mark.search(page.read_text())]
    assert marked == []


@pytest.mark.parametrize("ending", ["py", "toml"])
def test_no_source_and_no_packaged_data_names_a_file_that_does_not_ship(ending: str) -> None:
    package = ROOT / "dysharp"
    paths = sorted(path for path in package.rglob(f"*.{ending}"))
    notes = {str(path.relative_to(package)): NOTES.findall(path.read_text()) for path in paths}
    assert {path: names for path, names in notes.items() if names} == {}


def test_every_term_of_the_glossary_is_in_its_table_once() -> None:
    terms = [line.split(" | ")[0] for line in GLOSSARY.read_text().splitlines() if line.count(" | ") == 3 and "| term |" not in line]
    assert len(terms) == len(set(terms)) > 50


def test_every_folder_of_the_package_is_on_the_map() -> None:
    folders = {path.name for path in (ROOT / "dysharp").iterdir() if any(path.glob("*.py")) or any(path.glob("*.csv"))}
    cells = [line.split("|")[1] for line in (ROOT / "docs" / "map.md").read_text().splitlines() if line.startswith("| `")]
    assert folders - set(re.findall(r"`(\w+)`", " ".join(cells))) == set(), "a new folder needs a line in docs/map.md"


@pytest.mark.parametrize("name", names())
def test_the_glossary_names_what_exists(name: str) -> None:
    assert is_defined(name), f"{name}: found in the glossary, expected a class, function, field or module of dysharp"


def test_a_broken_link_and_a_missing_name_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](none.md) [b](#one) [c](#two) [d](https://example.org)\n")
    assert broken(page, tmp_path) == ["none.md", "#two"]
    page.write_text("`tests/none.py` `tests/docs` `dysharp/runs/point.py` `dysharp/none`\n")
    assert missing_paths(page) == ["tests/none.py", "dysharp/none"]
    assert not is_defined("program.NoSuchTable")
    assert OUTSIDE.findall("see spec/dysharp.md") == ["spec/dysharp.md"]
    assert NOTES.findall("rule 14.7, protocol P6, design section 4") == ["rule 14.7", "protocol P6", "design section 4"]
