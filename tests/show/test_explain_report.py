"""The page of `explain`, its trace and its schema."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.api.explaining import Explanation
from dysharp.cli.app import cli
from dysharp.show.explain_report import WIDTH, render_explanation, trace_of
from tests.profiles.made import LAYERS, run_of, write
from tests.show.test_step_report import Tags


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    files = write(tmp_path_factory.mktemp("run"), run_of(2, planted="copy"))
    made = dysharp.explain(*files, what_if=("links=2",))
    assert isinstance(made, Explanation)
    return made


@pytest.fixture(scope="module")
def page(done: Explanation) -> str:
    return render_explanation(done, "dysharp explain '<b>'")


def test_the_page_answers_first_loads_nothing_and_escapes(done: Explanation, page: str) -> None:
    reader = Tags()
    reader.feed(re.sub("<input[^>]*>|<path[^>]*/>", "", page))
    assert not reader.open
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert "<script" not in page
    assert "dysharp explain &#39;&lt;b&gt;&#39;" in page
    assert page.index(html.escape(done.losses[0].text)) < page.index("<h2")
    assert len(page) < 1 << 20
    assert all(f"{one.operator}</th>" in page for one in done.operators)


def test_the_drawing_has_the_time_of_every_event(done: Explanation, page: str) -> None:
    """Wide events and narrow ones add up, as measured on both ranks, and where shapes say it as expected: here that is what GEMMs took."""
    drawing = page[page.index("<svg") : page.index("</svg>")]
    boxes = [float(w) for found in (r'rect x="[\d.]+" y="\d+" width="([\d.]+)"', r"h([\d.]+)v") for w in re.findall(found, drawing)]
    took = sum(one.us for one in done.operators)
    gemms = next(one.us for one in done.operators if one.operator == "GEMM")
    assert sum(boxes) == pytest.approx(2 * (took + gemms) * WIDTH / done.span_us, rel=1e-3)
    assert drawing.count(">expected</text>") == 2
    assert f"copy: 1,500 us at {sum(layer['whole'] for layer in done.layer_us[:2]):.2f} ms" not in drawing  # rank 0 begins with GEMMs
    assert drawing.count("copy: 1,500 us at ") == 2


def test_rows_have_three_orders(done: Explanation, page: str) -> None:
    places = [tuple(map(int, one)) for one in re.findall(r"--took:(\d+);--over:(\d+);--name:(\d+)", page)]
    n = len(done.operators)
    assert [took for took, _, _ in places] == list(range(1, n + 1))
    assert {over for _, over, _ in places} == {name for _, _, name in places} == set(range(n))


def test_the_trace_is_read_again_and_has_both_tracks(tmp_path: Path, done: Explanation) -> None:
    trace = trace_of(done)
    expected = [one for one in trace["traceEvents"] if one.get("cat") == "expected"]
    assert len(expected) == 2 * 4 * LAYERS  # GEMMs of both ranks
    assert {one["args"]["operator"] for one in expected} == {"GEMM"}
    trace["traceEvents"] = [one for one in trace["traceEvents"] if one["pid"] == 0]
    file = tmp_path / "again.json"
    file.write_text(json.dumps(trace))
    again = dysharp.explain(file)
    assert isinstance(again, Explanation)
    assert again.span_us == pytest.approx(done.span_us)
    assert {one.operator: one.kernels for one in again.operators} == {one.operator: one.kernels for one in done.operators}


def test_the_command_writes_both_and_has_a_schema(tmp_path: Path) -> None:
    (file,) = write(tmp_path, run_of(1))
    written, trace = tmp_path / "a.html", tmp_path / "a.json.gz"
    ran = CliRunner().invoke(cli, ["explain", file, "--report", str(written), "--timeline", str(trace), "--json"])
    assert ran.exit_code == 0, ran.output
    assert f"dysharp explain {file} --timeline {trace} --report {written}" in written.read_text()
    assert trace.read_bytes()[:2] == b"\x1f\x8b"
    two = CliRunner().invoke(cli, ["explain", file, file, "--report", str(written)])
    assert "found two runs, expected one run for --timeline, --report and --chakra" in str(two.exception)


@pytest.mark.slow
def test_in_a_browser(tmp_path: Path, page: str) -> None:
    """Without JavaScript: no request but the file, no message, nothing wider than the window; rows change places by the order that is chosen."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or pytest.skip("needs chromium")
    file = tmp_path / "page.html"
    file.write_text(page)
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        for width in (1280, 390):
            tab = browser.new_context(viewport={"width": width, "height": 800}).new_page()
            seen: list[str] = []
            tab.on("request", lambda r, to=seen: to.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
            tab.on("console", lambda m, to=seen: to.append(m.text))
            tab.goto(file.as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            orders = []
            for order in ("by-took", "by-name"):
                tab.locator(f"#{order}").check()
                rows = tab.locator(".sorted tbody tr").all()
                places = [((row.bounding_box() or {"y": 0.0})["y"], row.locator("th").inner_text().split(" ", 1)[1]) for row in rows]
                orders.append([name for _, name in sorted(places)])
            assert orders[0][0] == "GEMM"
            assert orders[1] == sorted(orders[0], key=str.lower)
            assert seen == []
        browser.close()
