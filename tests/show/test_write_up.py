"""The write-up: every claim once, its numbers those of the stored files, and a command beside each of them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli
from dysharp.figures import list_figures, load_figure, stored
from dysharp.figures.figure import PAPERS
from dysharp.figures.stored import finite_claims, page_of, stored_answers, stored_figures, stored_folder
from dysharp.show.figure_tables import VERDICTS
from dysharp.show.paper_page import Section
from dysharp.show.write_up import Paper, Part, html, markdown, write_up

COMMAND = re.compile(r"`(dysharp|python bench/)[^`]+`(, `(dysharp|python bench/)[^`]+`)*")


def parts_of(folder: Path) -> list[Part]:
    papers = [Paper(title, *page_of(name, folder), [Section(*one) for one in stored_figures(name, folder)]) for name, title in PAPERS.items()]
    return write_up(papers, stored_answers(folder), finite_claims())


@cache
def parts() -> list[Part]:
    return parts_of(stored_folder())


def rows(ending: str) -> list[tuple[str, ...]]:
    return [row for part in parts() if part.heading.endswith(ending) for row in part.rows]


def test_every_claim_is_there_once_with_its_numbers_and_its_worst_verdict() -> None:
    order, found = list(VERDICTS), {row[0]: row for row in rows("every claim")}
    assert len(found) == len(rows("every claim"))
    assert set(found) == {f"{name}: {c.name}" for name in list_figures() for c in load_figure(name).checks if c.bounded}
    verdicts, ours = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    with (stored_folder() / "claims.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            row = max((r for r in found if f"{line['figure']}: {line['claim']}".startswith(r)), key=len)
            verdicts[row].append(line["verdict"])
            ours[row].append(line["ours"])
    assert set(verdicts) == set(found)
    for name, row in found.items():
        assert row[4] == VERDICTS[max(verdicts[name], key=order.index)], name
        values = sorted(set(ours[name]), key=float)
        assert row[2] == (values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"), name


def test_no_number_is_without_its_command() -> None:
    for part in parts():
        assert part.rows == () or part.columns[-1] == "command"
        assert all(COMMAND.fullmatch(row[-1]) and len(row) == len(part.columns) for row in part.rows), part.heading
    assert len(parts()[0].text) == len(PAPERS)
    assert all(COMMAND.search(text) for text in parts()[0].text)


def test_claims_on_finite_hardware_are_those_that_were_kept() -> None:
    kept = [one for name, answer in stored_answers(stored_folder()).items() if name.startswith("finite-") for one in answer["answer"]]
    assert kept
    assert len({(one["figure"], one["name"]) for one in kept}) == len(kept) <= finite_claims()
    assert {row[0]: row[1:4] for row in rows("finite hardware leaves")} == {
        f"{one['figure']}: {one['name']}": (f"{one['headline']:.3f}", f"{one['finite']:.3f}", one["verdict"]) for one in kept
    }
    text = next(part.text[0] for part in parts() if part.heading.endswith("finite hardware leaves"))
    told = ", ".join(f"{sum(one['verdict'] == word for one in kept)} {word}" for word in ("holds", "weaker", "gone", "no gain"))
    assert text.startswith(f"{len(kept)} of {finite_claims()} claims about ratios of layer times ran with finite tables, buffers, packets: {told}.")


def test_the_document_follows_its_sources(tmp_path: Path) -> None:
    """Another stored share, another stored gain: the cells change, and nothing else does."""
    folder = tmp_path / "papers"
    shutil.copytree(stored_folder(), folder)
    share = folder / "beyond" / "today.csv"
    share.write_text(share.read_text().replace(",0.574,", ",0.123,", 1))
    gains = folder / "stored" / "gain-map.json"
    known = json.loads(gains.read_text())
    known["answer"]["gain_map"]["own"]["switch"] = [0.01] * 7
    gains.write_text(json.dumps(known))
    before, after = (markdown(each, "c").splitlines() for each in (parts(), parts_of(folder)))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 3
    assert "| 0.574 |" in changed[0][0]
    assert "| 0.123 |" in changed[0][1]
    assert "switch nowhere" in changed[1][1]
    assert "nowhere (+1% to +1%)" in changed[2][1]


def test_the_page_has_all_cells_and_loads_nothing() -> None:
    page = html(parts(), "dysharp reproduce --paper x.html")
    assert page.count("<td>") == sum(map(len, (row for part in parts() for row in part.rows)))
    assert "<code>dysharp reproduce fig15</code>" in page
    assert "<script" not in page
    assert "src=" not in page


def test_the_command_writes_a_file_or_both_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(cli, ["reproduce", "--paper", str(tmp_path / "new")]).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["paper.html", "paper.md"]
    text = (tmp_path / "new" / "paper.md").read_text()
    assert text.startswith("# What holds of the papers\n\nDySHARP (arXiv 2605.05607): Of ")
    monkeypatch.setattr(stored, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    found = CliRunner().invoke(cli, ["reproduce", "--paper"])
    assert "expected docs/papers of a checkout or an installed wheel" in str(found.exception)
