"""The page and the plot of a training step: all ranks and systems, nothing is loaded, text is escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.base.units import PS_PER_US
from dysharp.cli.app import cli
from dysharp.show.step_plot import WORK, plot_step, spans
from dysharp.show.step_report import WIDTH, render_steps


@pytest.fixture(scope="module")
def done() -> Any:
    return dysharp.step("deepseek-v2-lite", "paper-gh200-nvl32", "pp=3,ep=4,m=6", "zb-h1", ["deepep", "ideal"], sequence=32)


@pytest.fixture(scope="module")
def page(done: Any) -> str:
    return render_steps(done, "dysharp step '<b>'")


class Tags(HTMLParser):
    """Tags that are open, and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in {"meta", "link", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


def test_the_page_answers_first_loads_nothing_and_escapes(done: Any, page: str) -> None:
    reader = Tags()
    reader.feed(page)
    assert not reader.open
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert "<script" not in page
    assert "dysharp step &#39;&lt;b&gt;&#39;" in page
    assert page.index(done.sentence().split(". ")[0]) < page.index("<h2")
    assert all(f'<th scope="row">{one.system}</th>' in page for one in done.steps)


def test_the_drawing_has_every_slot_once_and_in_its_place(done: Any, page: str) -> None:
    """F, I and W of 6 micro-batches on 3 ranks take the time that ranks compute; the first pass waits for its parameters in pieces."""
    found = spans(done.best.replayed)
    counts = {work: len(own) for work, own in found.items()}
    cells = [span for work in WORK[:4] for span in found.get(work, [])]
    assert len(cells) >= 3 * 18
    assert len(found["weight gradients"]) == 18
    computed = sum(rank[part] for rank in done.best.split.ranks for part in ("compute", "exposed EP", "launches", "collectives"))
    assert sum(end - start for _, start, end in cells) == pytest.approx(computed / PS_PER_US / 1e3)
    assert max(end for own in found.values() for _, _, end in own) == pytest.approx(done.best.step_us / 1e3)
    boxes = [(float(x), float(w)) for x, w in re.findall(r"M([\d.]+) \d+h([\d.]+)v", page)]
    assert len(boxes) == sum(counts.values())
    assert max(x + w for x, w in boxes) == pytest.approx(WIDTH, abs=0.02)


def test_the_plot_has_a_line_for_every_rank(done: Any) -> None:
    axes = plot_step(done)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2"]
    assert axes.get_xlim()[1] == pytest.approx(done.best.step_us / 1e3)


def test_the_command_writes_both(tmp_path: Path) -> None:
    args = ["step", "deepseek-v2-lite", "--layout", "pp=3,ep=4,m=6", "--sequence", "32", "--systems", "deepep"]
    html, plot = tmp_path / "a.html", tmp_path / "a.svg"
    ran = CliRunner().invoke(cli, [*args, "--report", str(html), "--plot", str(plot)])
    assert ran.exit_code == 0, ran.output
    assert "dysharp step deepseek-v2-lite --layout pp=3,ep=4,m=6" in html.read_text()
    assert plot.read_text().startswith("<?xml")
    refused = CliRunner().invoke(cli, [*args, "--plot", str(tmp_path / "a.gif")])
    assert refused.exit_code
