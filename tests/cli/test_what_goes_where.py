"""What a command prints and where: the answer on stdout, what it rests on on stderr. The answers are made by hand, so nothing is simulated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dysharp import api as API
from dysharp.base.errors import ConfigError
from dysharp.base.version import MODEL_VERSION
from dysharp.cli.app import cli
from dysharp.cli.rtl import _print_cost, _print_hardware
from dysharp.cli.serve import _print_serving
from dysharp.cli.texts.examples import EXAMPLES
from dysharp.cli.texts.plan_text import draw_plan
from dysharp.silicon.cluster_area import published
from dysharp.specs import load_cluster

Call = Callable[..., Any]
NONE = {("plan", "rows"), ("serve", "mtp")}
"""Options whose 0 stands for none."""


def commands(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        yield path, command
        if isinstance(command, click.Group):
            yield from commands(command, path)


COMMANDS = dict(commands(cli))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_every_default_and_the_examples(path: str) -> None:
    """A default is a number or a word; of a flag and of a list it is nothing. Some options say in their own words what the default is."""
    command = COMMANDS[path]
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and isinstance(option.default, int | float | str) and option.default != "":
            assert option.show_default or "default" in (option.help or "") or (path, option.name) in NONE, option.name
    assert (command.epilog or "").startswith("\b\nExamples:\n") == (path in EXAMPLES)
    assert all(f"  {line}" in (command.epilog or "").split("\n") for line in EXAMPLES.get(path, ()))


def test_a_run_that_takes_long_says_so_first_and_on_stderr(dysharp: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise ConfigError("stopped")

    monkeypatch.setattr("dysharp.runs.packet_time.packet_time", lambda *_, **__: "takes minutes")
    monkeypatch.setattr(API, "run", stop, raising=False)
    done = dysharp("run", "deepep", "--fidelity", "packet")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == ["takes minutes", "dysharp: error: stopped"]


def test_advice_as_json_has_its_header_on_stderr(dysharp: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(to_dict=lambda: {"best": "x"}, header=("rests on this",))
    monkeypatch.setattr(API, "advise", lambda *_, **__: answer, raising=False)
    done = dysharp("advise", "deepseek-v3", "--json")
    assert json.loads(done.out) == {"model_version": MODEL_VERSION, "best": "x"}
    assert done.err.splitlines()[-2:] == ["rests on this", f"model version {MODEL_VERSION}"]


def test_a_trace_says_what_its_row_rests_on(dysharp: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved: list[str] = []
    answer = SimpleNamespace(save=saved.append, row="a row", timeline=None, words="a run", to_dict=lambda: {"path": "x"})
    monkeypatch.setattr(API, "trace", lambda *_, **__: answer, raising=False)
    monkeypatch.setattr("dysharp.api.comparison.header_lines", lambda rows: [f"header of {row}" for row in rows])
    out = str(tmp_path / "x.perfetto-trace")
    done = dysharp("trace", "deepep", "-o", out, "--json")
    assert (saved, json.loads(done.out)) == ([out], {"model_version": MODEL_VERSION, "path": "x"})
    assert done.err.splitlines()[-2:] == ["header of a row", f"model version {MODEL_VERSION}"]


def test_a_cost_is_shown_in_the_nodes_of_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    spread = (0.1, 0.2, 0.3)
    asked: list[int] = []

    def parts(node: int) -> dict[str, tuple[float, ...]]:
        asked.append(node)
        return {"logic": spread}

    cost: Any = SimpleNamespace(parts_mm2=parts, mm2=lambda node: spread, kge=1.0, sram_bits=2, cam_bits=3, path_gates=4, path_macros=5)
    _print_cost(cost)
    assert set(asked) == {row.node for row in published(load_cluster("paper-gh200-nvl32"))} == {7, 12}
    assert {line.split(" nm")[0].strip() for line in capsys.readouterr().out.splitlines() if " nm " in line} == {"12", "7"}


@pytest.mark.parametrize("traced", [False, True])
def test_a_block_that_was_fed_by_a_run_says_with_what(traced: bool, capsys: pytest.CaptureFixture[str]) -> None:
    trace = SimpleNamespace(results=1, bypasses=2, evictions=3, model="S-8", routing="uniform", steps=[0] * 7)
    block: Any = SimpleNamespace(
        block="b", meaning="m", parameters={}, memories=[], interface="i", pins=[], cost=None, library_kge=None, checked=[], proven=[], path=None,
        testbench=None, trace=trace if traced else None,
    )  # fmt: skip
    _print_hardware(block)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("one port of S-8, uniform routing: 7 packets, 1 results, 2 bypasses, 3 evictions") == traced
    assert ("pin side bits" in printed) != traced, "pins stand where nothing else was asked"


def test_the_front_has_a_sentence_above_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    from dysharp.api import serving_answer

    row = dict.fromkeys((column.name for column in serving_answer.POINTS.own), None)
    none: dict[str, Any] = {name: [] for name in ("best", "what_ifs", "systems", "rejected")}
    none |= {name: lambda: [] for name in ("trust", "advice")}
    done: Any = SimpleNamespace(replays=(), sentences=lambda: ["first"], front=[1, 2], points_of=lambda points: [row for _ in points], **none)
    _print_serving(done)
    text = capsys.readouterr().out
    assert text.index("first") < text.index("Front: no other point has more tokens per second") < text.index(serving_answer.POINTS.headings[0])


def test_a_plan_is_drawn_with_the_replay_of_its_best_layout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("dysharp.api.plan_confirm.replayed", lambda coster, best: seen.append((coster, best)) or "a replay")
    monkeypatch.setattr("dysharp.cli.texts.plan_text.short_of", lambda one: one.name)
    monkeypatch.setattr("dysharp.show.plan_plots.plot_plan", lambda *given: seen.append(given) or "axes")
    monkeypatch.setattr("dysharp.show.plots.save_figure", lambda axes, path: seen.append((axes, path)))
    best = [SimpleNamespace(name=n, limit="links", memory=[2 << 30, 1 << 30]) for n in ("a", "b")]
    one = SimpleNamespace(
        found=SimpleNamespace(best=best), task=SimpleNamespace(model=SimpleNamespace(name="m"), gpus=8), coster=SimpleNamespace(capacity=80 << 30),
        speed=lambda x: {"a": 2.0, "b": 1.0}[x.name],
    )  # fmt: skip
    draw_plan(SimpleNamespace(plan=SimpleNamespace(first=one, cluster=SimpleNamespace(name="c"))), "f.svg")  # type: ignore[arg-type]
    title = "m, 8 GPUs of c"
    assert seen == [(one.coster, best[0]), (title, ["a", "b"], [2.0, 1.0], ["links"] * 2, [2.0, 1.0], 80.0, "a replay"), ("axes", "f.svg")]


@pytest.mark.parametrize("given", [[], ["tp=2"], ["tp=2", "tp=4"]])
def test_layouts_that_were_named_are_those_that_are_tried(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("dysharp.api.serving.serve", lambda *_, **request: asked.append(request["layouts"]) or 1 / 0)
    done = CliRunner().invoke(cli, ["serve", "llama3-8b", *(["--layouts", ";".join(given)] if given else [])])
    assert isinstance(done.exception, ZeroDivisionError)
    assert asked == [given or None] or [*asked[0]] == given
