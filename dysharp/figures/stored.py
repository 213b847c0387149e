"""Answers that are kept beside the package: pages of papers with their numbers, and runs that no figure has (docs/papers)."""

import json
from pathlib import Path

from dysharp.base import ByName, ConfigError
from dysharp.figures.figure import BEYOND, Figure, list_figures, load_figure
from dysharp.figures.finite import claims_of
from dysharp.figures.tornado import HEADLINES, Tornado
from dysharp.figures.verdict import Result, rejudged


def stored_folder() -> Path:
    """`docs/papers` of the checkout, or its copy in an installed package. Raises ConfigError where neither is."""
    here = Path(__file__).parent
    for folder in (here / "papers", here.parents[1] / "docs" / "papers"):
        if (folder / "claims.csv").exists():
            return folder
    raise ConfigError("stored numbers: found none, expected docs/papers of a checkout or an installed wheel")


def page_head(page: str) -> tuple[str, str]:
    """(command, model version) that wrote the text of a page."""
    return page.split("`")[1], page.split("model version ", 1)[1].split(".", 1)[0]


def page_of(paper: str, folder: Path) -> tuple[str, str]:
    """`page_head` of the page of a paper."""
    return page_head((folder / f"{paper or BEYOND}.md").read_text(encoding="utf-8"))


def stored_figures(paper: str, folder: Path) -> list[tuple[Figure, list[Result]]]:
    """The packaged figures of a page, and the tornado, with their stored lines, judged by today's checks."""
    figures = [*map(load_figure, list_figures()), Tornado("S-8", HEADLINES["dysharp"]).figure()]
    kept = [(figure, folder / (paper or BEYOND) / f"{figure.name}.csv") for figure in figures if figure.paper == paper]
    return [(figure, rejudged(path, figure)) for figure, path in kept if path.exists()]


def stored_answers(folder: Path) -> dict[str, ByName]:
    """{name: {"command", "model_version", "answer"}} of runs that `bench/write_up.py` kept."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "stored").glob("*.json"))}


def finite_claims() -> int:
    """Claims of all packaged figures that `reproduce --finite` asks about."""
    return sum(len(claims_of(load_figure(name))) for name in list_figures())
