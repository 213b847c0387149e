"""Which commit set the bound of every check of the figures, and which first showed its number: read from the history.

    python bench/bounds.py
    python bench/bounds.py --before COMMIT
    python bench/bounds.py --pages

Prints the checks whose `bound_set` or `number_seen` is not what the history says. A bound that stood as text before it stood as data, and a
number that another page showed first, are set by hand: they stay in this list. `--pages` runs no point: it writes the pages of `docs/papers` anew
from their stored numbers and today's checks; `tests/figures/test_paper_pages.py` compares them.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "docs" / "papers"
FOLDERS = ("dysharp/figures/data", "dysharp/experiments/figures")
SAME = ("metric", "system", "over", "reduce", "models", "cluster", "gpus", "tokens", "routing", "fidelity", "options", "against")
BOUND = ("within", "at_least", "at_most")


def git(*arguments: str) -> list[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


@cache
def dates() -> dict[str, str]:
    """{commit: its date and time}."""
    lines = (line.partition(" ") for line in git("log", "--abbrev=8", "--format=%h %ad", "--date=format:%Y-%m-%d %H:%M"))
    return {commit: date for commit, _, date in lines}


def history(figure: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """(commit, checks) of every version of a figure's file, the oldest first."""
    found = []
    for folder in FOLDERS:
        path = f"{folder}/{figure}.toml"
        for commit in git("log", "--abbrev=8", "--format=%h", "--full-history", "--diff-filter=AM", "--", path):
            found.append((commit, tomllib.loads("\n".join(git("show", f"{commit}:{path}"))).get("check", [])))
    return sorted(found, key=lambda version: dates()[version[0]])


def bound(check: dict[str, Any]) -> dict[str, Any]:
    return {k: check[k] for k in (*BOUND, *(("paper",) if "within" in check else ())) if k in check}


def of_check(check: dict[str, Any], checks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The same check in another version of the file: the same name, or the same number."""
    same = [c for c in checks if [c.get(k) for k in SAME] == [check.get(k) for k in SAME]]
    named = [c for c in same or checks if c["name"] == check["name"] and c["metric"] == check["metric"]]
    return next(iter(named or same), None)


def seen_on_pages(figure: str) -> Iterator[str]:
    """Commits that first showed numbers of a figure on a page."""
    for page in ("dysharp", "moe-hub", "beyond"):
        yield from git("log", "--abbrev=8", "--reverse", "--diff-filter=A", "--format=%h", "--", f"docs/papers/{page}/{figure}.csv")[:1]
    if git("log", "--format=%h", f"-S## {figure}:", "--", "docs/reproduction.md"):
        for commit in git("log", "--abbrev=8", "--reverse", "--format=%h", "--", "docs/reproduction.md"):
            if any(f"## {figure}:" in line for line in git("show", "--format=", commit, "--", "docs/reproduction.md")):
                yield commit


def found(figure: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(check, commit that set its bound, commit that first showed its number) of the present file, with times."""
    versions, pages = history(figure), list(seen_on_pages(figure))
    for check in tomllib.loads((ROOT / FOLDERS[0] / f"{figure}.toml").read_text())["check"]:
        if not bound(check):
            continue
        set_by, seen, there = "", [], ""
        for commit, checks in versions:
            then = of_check(check, checks)
            there = there or (commit if then else "")
            set_by = (set_by or commit) if then is not None and bound(then) == bound(check) else ""
            if then and ("expected" in then or "regression" in then or then.get("reason")):
                seen.append(commit)
        seen += [page for page in pages if dates()[page] >= dates()[there]]  # an older page does not have the check
        first = min(seen, key=dates().__getitem__, default="")
        yield check, *(f"{commit} {dates()[commit]}" if commit else "" for commit in (set_by, first))


def before(commit: str) -> None:
    """The table of claims at `commit` beside today's. A check that is called otherwise today is the same if its metric and systems are."""
    with (PAPERS / "claims.csv").open(encoding="utf-8", newline="") as file:
        today = {(line["figure"], line["claim"]): line for line in csv.DictReader(file)}
    rows, left = [], dict(today)
    for path in git("ls-tree", "--name-only", commit, f"{FOLDERS[0]}/"):
        figure = Path(path).stem
        now = ROOT / FOLDERS[0] / f"{figure}.toml"
        checks = tomllib.loads(now.read_text())["check"] if now.exists() else []
        for check in tomllib.loads("\n".join(git("show", f"{commit}:{path}"))).get("check", []):
            same = of_check(check, checks)
            line = left.pop((figure, same["name"]), None) if same else None
            word = "regression" if same and not bound(same) else "gone"
            rows.append([figure, check["name"], check.get("status", "hold"), line["verdict"] if line else word, line["could fail"] if line else ""])
    rows += [[figure, claim, "not there", line["verdict"], line["could fail"]] for (figure, claim), line in left.items()]
    with (PAPERS / "claims-before.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["figure", "claim", f"at {commit}", "today", "could fail"], *rows])
    for (then, verdict), n in sorted(Counter((row[2], row[3]) for row in rows).items()):
        print(f"{then:12} -> {verdict:12} {n:4}")


def rejudged(paper: str) -> list[Any]:
    """The sections of a page: numbers as its CSV files have them, bounds and verdicts as today's checks say."""
    from dysharp.figures.figure import BEYOND
    from dysharp.figures.stored import stored_figures
    from dysharp.show.paper_page import Section

    kept = stored_figures(paper, PAPERS)
    return [Section(figure, results, (PAPERS / (paper or BEYOND) / f"{figure.name}.svg").exists()) for figure, results in kept]


def pages() -> dict[Path, str]:
    """{file: its text}: pages, their CSV files and the list of all claims."""
    from dysharp.figures.figure import BEYOND
    from dysharp.figures.figure import PAPERS as TITLES
    from dysharp.figures.stored import page_head
    from dysharp.show.paper_page import claims_csv, paper_page, results_csv

    texts, every = dict[Path, str](), []
    for paper, title in TITLES.items():
        sections, page = rejudged(paper), PAPERS / f"{paper or BEYOND}.md"
        texts[page] = paper_page(title, page.stem, sections, *page_head(page.read_text(encoding="utf-8")))
        texts |= {PAPERS / page.stem / f"{s.figure.name}.csv": results_csv(s.results) for s in sections}
        every += sections
    return texts | {PAPERS / "claims.csv": claims_csv(every)}


def main() -> None:
    if sys.argv[1:] == ["--pages"]:
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
        return
    if sys.argv[1:2] == ["--before"] and len(sys.argv) == 3:
        before(sys.argv[2])
        return
    for path in sorted((ROOT / FOLDERS[0]).glob("*.toml")):
        for check, set_by, seen in found(path.stem):
            if (set_by, seen) != (check.get("bound_set", ""), check.get("number_seen", "")):
                print(f"{path.stem}: {check['name']}: set {check.get('bound_set', '-')} (history: {set_by or '-'}),", end=" ")
                print(f"seen {check.get('number_seen', '-')} (history: {seen or '-'})")


if __name__ == "__main__":
    main()
