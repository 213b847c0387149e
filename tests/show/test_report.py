"""A report says what the Rows say, loads nothing, and escapes text. In Chromium, where there is one: no request, no error, keyboard order."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.cli.report import command_line
from dysharp.show.html_report import render, report_of_comparison, report_of_rows

SYSTEMS = ["deepep", "dysharp", "ideal"]
VOID = {"meta", "link", "br", "rect", "path"}
LOADS = {"script", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form"}


class Reader(HTMLParser):
    """Checks that tags are closed, and collects text, tags and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.events: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "xlink:href", "srcset")]
        self.events += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def done() -> dysharp.api.Comparison:
    return dysharp.compare(SYSTEMS, gpus=4, tokens=16)


@pytest.fixture(scope="module")
def page(done: dysharp.api.Comparison) -> str:
    return render(report_of_comparison(done, "dysharp compare --gpus 4 --tokens 16"))


def _read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


def test_the_page_says_what_the_comparison_says(done: dysharp.api.Comparison, page: str) -> None:
    text = " ".join(" ".join(_read(page).text).split())
    assert done.sentence in text
    assert "dysharp compare --gpus 4 --tokens 16" in text
    for row in done.rows:
        assert re.search(rf"\b{row.system} {row.form} {row.time_us:.1f}", text), row.system
        assert f"{done.speedup[row.system]:.2f} {row.bound_us:.1f}" in text
    for line in done.header:
        assert line.removeprefix("warning: ") in text
    assert f"lower bound of every system, {done.rows[0].workload_bound_us:.1f} us" in text
    assert "Heat map of tokens between 4 GPUs" in page
    assert "critical path" in text


def test_a_bar_is_as_long_as_its_time(done: dysharp.api.Comparison, page: str) -> None:
    widths = [float(w) for w in re.findall(r'<rect x="0" y="3" width="([0-9.]+)" height="18"', page)][: len(SYSTEMS)]
    times = [row.time_us for row in done.rows]
    assert [w / widths[0] for w in widths] == pytest.approx([t / times[0] for t in times], rel=1e-3)
    assert 950 < max(widths) < 1000  # of the picture's 1000: the longest bar fills it and stays inside


def test_the_page_loads_nothing(page: str) -> None:
    reader = _read(page)
    assert not reader.tags & LOADS
    assert not reader.events
    assert all(a.startswith("#") or a == "data:," for a in reader.addresses)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("field", ["model", "cluster", "routing", "system"])
def test_text_of_files_is_escaped(done: dysharp.api.Comparison, field: str) -> None:
    evil = '<script>alert("x")</script><img src=x onerror=1>{{ 7 * 7 }}'
    rows = [row.to_dict() | {field: evil, "warnings": [evil], "options": {evil: evil}} for row in done.rows]
    page = render(report_of_rows(rows, f"dysharp report {evil}", title=evil))
    reader = _read(page)
    assert not reader.tags & LOADS
    assert not reader.events
    assert evil in "".join(reader.text)


def test_runs_of_several_workloads_have_an_overview(done: dysharp.api.Comparison) -> None:
    rows = [row.to_dict() | {"seed": seed} for seed in (0, 1) for row in done.rows]
    rows[0]["options"] = rows[0]["options"] | {"compute": False}
    text = " ".join(" ".join(_read(render(report_of_rows(rows, "x"))).text).split())
    assert "Time of the layer, all workloads" in text


def test_a_warning_stands_below_its_number(done: dysharp.api.Comparison) -> None:
    rows = [row.to_dict() | ({"warnings": ["beyond the measured range"]} if row.system == "dysharp" else {}) for row in done.rows]
    page = render(report_of_rows(rows, "x"))
    line = page.index("⚠ dysharp: beyond the measured range")
    assert page.rindex('<th scope="row">', 0, line) < line
    assert "dysharp" in page[page.rindex('<th scope="row">', 0, line) : line]


def test_rows_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="without model"):
        report_of_rows([{"system": "x"}], "x")
    with pytest.raises(ConfigError, match="no rows"):
        report_of_rows([], "x")


def test_a_bad_row_is_named_by_file_and_number(tmp_path: Path, done: dysharp.api.Comparison) -> None:
    good, bad, out = tmp_path / "good.json", tmp_path / "bad.json", str(tmp_path / "z.html")
    rows = [row.to_dict() for row in done.rows]
    good.write_text(json.dumps(rows))
    for change, words in (({"attribution": {}}, "expected a cause and its time"), ({"seed": -1}, "expected greater than or equal to 0")):
        bad.write_text(json.dumps([rows[0], rows[1] | change]))
        with pytest.raises(ConfigError, match=rf"bad\.json: row 2: {next(iter(change))}: found .*{words}"):
            CliRunner().invoke(cli, ["report", str(good), str(bad), "-o", out], catch_exceptions=False)


def test_a_cause_of_a_network_that_is_not_here_has_its_own_name(done: dysharp.api.Comparison) -> None:
    rows = [row.to_dict() | {"attribution": {"fog_us": row.time_us}} for row in done.rows]
    assert "Its critical path is fog_us (100%)." in " ".join(_read(render(report_of_rows(rows, "x"))).text)


def test_commands_write_reports(tmp_path: Path, done: dysharp.api.Comparison) -> None:
    out, stored = tmp_path / "a.html", tmp_path / "runs.json"
    run = CliRunner().invoke(cli, ["compare", "--systems", "deepep,ideal", "--gpus", "4", "--tokens", "16", "--report", str(out), "--json"])
    assert run.exit_code == 0, run.output
    assert f"dysharp compare --systems deepep,ideal --gpus 4 --tokens 16 --report {out} --json" in out.read_text()
    stored.write_text(json.dumps(done.to_dict()))
    assert CliRunner().invoke(cli, ["report", str(stored), "-o", str(tmp_path / "b.html")]).exit_code == 0
    for name, text in (("x.json", "no"), ("y.json", "[1]"), ("z.json", "[]")):
        (tmp_path / name).write_text(text)
        assert CliRunner().invoke(cli, ["report", str(tmp_path / name), "-o", str(out)], standalone_mode=False).exception is not None
    assert CliRunner().invoke(cli, ["compare", "--report", "x.txt"], standalone_mode=False).exception is not None


def test_a_stored_comparison_says_what_it_left_out(tmp_path: Path, done: dysharp.api.Comparison) -> None:
    why = "window: 32 leading tokens of nvls give no estimate"
    shown = render(report_of_comparison(replace(done, left_out={"nvls": why}, header=(*done.header, f"warning: nvls is left out: {why}")), "x"))
    one, other, page = tmp_path / "one.json", tmp_path / "other.json", tmp_path / "page.html"
    one.write_text(json.dumps(replace(done, left_out={"nvls": why}).to_dict()))
    other.write_text(json.dumps({"rows": [row.to_dict() | {"seed": 1} for row in done.rows]}))
    run = CliRunner().invoke(cli, ["report", str(one), str(other), "-o", str(page)])
    assert run.exit_code == 0, run.output
    assert f"nvls is left out: {why}" in shown
    assert page.read_text().count(f"nvls is left out: {why}") == 1, "below the workload of its comparison only"


def _many(done: dysharp.api.Comparison) -> list[dict[str, Any]]:
    names = ["deepep", "nvls", "comet", "dysharp", "ideal", "tutel", "fastermoe", "ccfuser", "megamoe"]
    return [done.rows[i % 3].to_dict() | {"system": name, "seed": seed} for seed in range(12) for i, name in enumerate(names)]


def test_a_page_of_nine_systems_and_twelve_workloads_is_small(done: dysharp.api.Comparison) -> None:
    assert len(render(report_of_rows(_many(done), "x"))) < 3_000_000


@pytest.mark.slow
def test_in_a_browser(tmp_path: Path, page: str) -> None:
    """Without JavaScript, at two widths: no request but the file, no message, content visible, keyboard order that of the page."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium")
    file = tmp_path / "page.html"
    file.write_text(page)
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        for width in (1280, 390):
            tab = browser.new_context(viewport={"width": width, "height": 800}).new_page()
            requests: list[str] = []
            messages: list[str] = []
            tab.on("request", lambda r, to=requests: to.append(r.url))
            tab.on("console", lambda m, to=messages: to.append(m.text))
            tab.goto(file.as_uri())
            assert [r for r in requests if not r.startswith(("file:", "data:"))] == []
            assert messages == []
            assert tab.locator("table").count() == 3
            assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            order = []
            for _ in range(4):
                tab.keyboard.press("Tab")
                order.append(tab.evaluate("document.activeElement.className + ' ' + (document.activeElement.getAttribute('aria-label') || '')"))
            assert order[0].startswith("skip")
            assert [o.split()[1] for o in order[1:]] == ["Times", "Critical", "Phases"]
        browser.close()


def test_every_cause_has_a_colour() -> None:
    from dysharp.runs.causes import causes

    assert len({cause.colour for cause in causes().values()}) == len(causes())


def test_nics_are_causes() -> None:
    done = dysharp.compare(["deepep", "megatron-a2a"], model="S-8", cluster="paper-dgx-h100-x4", gpus=16, tokens=64)
    page = render(report_of_comparison(done, "dysharp compare"))
    assert "NICs out" in page


@pytest.mark.parametrize("given", [["--no-compute", "deepep"], ["--compute", "deepep"], ["--json", "deepep", "--tokens", "8"], ["deepep"]])
def test_the_printed_command_is_the_one_that_was_typed(given: list[str]) -> None:
    """Switches as they were set, defaults left out, the argument first."""

    @click.command("run")
    @click.argument("system")
    @click.option("--compute/--no-compute", default=True)
    @click.option("--json", is_flag=True)
    @click.option("--tokens", type=int, default=64)
    @click.pass_context
    def run(ctx: click.Context, **_: object) -> None:
        click.echo(command_line(ctx))

    group = click.Group("dysharp", {"run": run})
    typed = [word for word in given if word != "deepep"]
    assert CliRunner().invoke(group, ["run", *given]).output.split() == ["dysharp", "run", "deepep", *typed]
