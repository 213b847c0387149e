"""Files with hostile values end in one line and exit code 2, or are shown as they are."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dysharp.cli.flags import complete_files
from tests.measured.csv_lines import GEMM, HEADER, line

Call = Callable[..., Any]
FIGURE = """
title = "{title}"
source = "a test"
[points]
systems = ["closed-form"]
models = ["S-8"]
{axes}
[[check]]
name = "{name}"
metric = "redundant_share"
system = "closed-form"
{bounds}
"""


def refused(done: Any, text: str) -> None:
    assert (done.code, done.out) == (2, "")
    (only,) = [row for row in done.err.splitlines() if row.startswith("dysharp: error: ")]
    assert text in only
    assert len(only) < 1600


def measurements(tmp_path: Path, *lines: str) -> str:
    (tmp_path / "m.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return str(tmp_path / "m.csv")


@pytest.mark.parametrize("command", [["validate", "--data"], ["calibrate", "-o", "out.toml"]])
def test_measurements_with_numbers_out_of_range(dysharp: Call, tmp_path: Path, command: list[str]) -> None:
    refused(dysharp(*command, measurements(tmp_path, line(config=GEMM | {"bytes": 10**301}))), "line 2: found a number of more than 300 digits")
    for value in ("1e308", "1e-320"):
        refused(dysharp(*command, measurements(tmp_path, line(value=value))), "expected 1e-09 to 1e+15")


def test_measurements_with_markup(dysharp: Call, tmp_path: Path) -> None:
    path = measurements(tmp_path, line(id_="[/red]\x1b[31m"), line(id_="b", system="[bold]x[/bold]"))
    done = dysharp("validate", "--data", path, "--groups", "-j", "1", "--page", str(tmp_path / "p.md"))
    assert done.code == 0
    assert "[/red]" in done.out
    assert "[bold]x[/bold]" in done.out
    assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bounds": "paper = 0\nwithin = 0.1"}, "check[0].within: found a tolerance relative to paper = 0"),
        ({"bounds": "at_least = inf"}, "at_least: found inf, expected a finite number"),
        ({"axes": f"seeds = {list(range(2000))}\ntokens = {list(range(1, 2001))}"}, "found 4000000 points, expected at most 100000"),
        ({"axes": "[points.grid]\n" + "\n".join(f"a{i} = {list(range(100))}" for i in range(8))}, "expected at most 100000"),
        ({"axes": "seeds = ['" + "x" * 5000 + "']"}, "points.seeds.0: found"),
        ({"axes": "gpus = " + "9" * 400}, "found a number of more than 300 digits"),
    ],
)
def test_a_hostile_figure(dysharp: Call, tmp_path: Path, changes: dict[str, str], text: str) -> None:
    values = {"title": "t", "axes": "", "name": "n", "bounds": ""}
    (tmp_path / "f.toml").write_text(FIGURE.format(**values | changes))
    for command in ("sweep", "reproduce"):
        refused(dysharp(command, str(tmp_path / "f.toml"), "--store", str(tmp_path / "s")), text)


def test_check_that_is_no_table(dysharp: Call, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('check = 5\n[points]\nsystems = ["closed-form"]\nmodels = ["S-8"]\n')
    refused(dysharp("reproduce", str(tmp_path / "f.toml")), "check: found 5, expected tables [[check]]")


def test_texts_of_a_figure_are_only_text(dysharp: Call, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(FIGURE.format(title="[/red]", axes="", name="\\u001b]0;pwn\\u0007[x](http://e)", bounds=""))
    done = dysharp("reproduce", str(tmp_path / "f.toml"), "--store", str(tmp_path / "s"), "--report", str(tmp_path / "r.md"))
    assert done.code == 0
    assert "[/red]" in done.out
    assert "\x1b" not in done.out + done.err + (tmp_path / "r.md").read_text()
    assert "\\[x\\](http://e)" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize("flag", ["--report", "--out"])
@pytest.mark.parametrize("name", ["", ".", "no/such/file", "x" * 300])
def test_a_destination_is_checked_before_the_run(dysharp: Call, tmp_path: Path, flag: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.toml").write_text(FIGURE.format(title="t", axes="", name="n", bounds=""))
    refused(dysharp({"--report": "reproduce", "--out": "sweep"}[flag], "f.toml", "--store", "s", flag, name), "cannot be written")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("flag", "name"), [("--summary", ""), ("--refit", "no/x"), ("--page", "."), ("--plot", "x" * 300 + ".svg")])
def test_a_destination_of_validate(dysharp: Call, tmp_path: Path, flag: str, name: str) -> None:
    refused(dysharp("validate", "--data", measurements(tmp_path, line()), flag, name), "cannot be written")


@pytest.mark.parametrize(("flag", "value"), [("--period", 10**18), ("--warm-up", 10**18), ("--period", 0)])
def test_network_periods_are_bounded(dysharp: Call, flag: str, value: int) -> None:
    refused(dysharp("network", flag, str(value)), f"{value} is not in the range 1<=x<=")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--from", "nan"], "found nan to the end us, expected a rising interval"),
        (["--from", "1e308"], "expected a rising interval"),
        (["--to", "inf"], "found 0 to inf us"),
        (["--only", "0:9999999999999999999999"], "found token 16, expected 0 to 15"),
        (["--follow", "-5:10"], "found token -5, expected 0 to 15"),
    ],
)
def test_times_and_tokens_of_a_trace_are_bounded(dysharp: Call, tmp_path: Path, arguments: list[str], text: str) -> None:
    out = ["-o", str(tmp_path / "x.perfetto-trace"), "--model", "S-8", "--gpus", "4", "--tokens", "4"]
    refused(dysharp("trace", "deepep", *out, *arguments), text)


def test_more_parts_than_ops_change_nothing(dysharp: Call, tmp_path: Path) -> None:
    for parts in (10**6, (1 << 63) - 1, 10**20):
        sizes = ["--model", "S-8", "--gpus", "2", "--tokens", "4", "--parts", str(parts)]
        assert dysharp("trace", "deepep", "--chakra", str(tmp_path / str(parts)), *sizes).code == 0
    one, two, three = ((tmp_path / str(parts) / "deepep.0.et").read_bytes() for parts in (10**6, (1 << 63) - 1, 10**20))
    assert one == two == three


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("lost_nics=0", "lost_nics: found 0, expected a list"),
        ("slow_nics=8", "slow_nics: found 8"),
        ('slow_nics="ab"', "slow_nics: found 'ab'"),
        ("nic_GBps=1e-300", "nic_GBps: found 1e-300, expected at least 0.001"),
    ],
)
def test_the_network_between_domains_is_checked(dysharp: Call, key: str, text: str) -> None:
    refused(dysharp("run", "deepep", "--tokens", "4", "--cluster", f"hw-dgx-h100-x2,scale_out.{key}"), text)


def test_completion_repeats_no_control_character() -> None:
    assert complete_files(None, None, "\x1b[31m") == []  # type: ignore[arg-type]
    assert len(complete_files(None, None, "a.toml")) == 1  # type: ignore[arg-type]


def test_a_trace_bomb_is_refused_before_memory_is_taken(dysharp: Call, tmp_path: Path) -> None:
    arrays = {"expert": np.zeros((1, 1 << 24, 8), np.int8), "meta": np.array('{"E": 64}')}
    np.savez_compressed(tmp_path / "bomb.npz", **arrays)
    del arrays
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(dysharp("routing", str(tmp_path / "bomb.npz")), "compressed bytes, expected at most 200 times as many")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_names_of_counts_reach_the_terminal_as_text(dysharp: Call, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("model,layer,expert,count\n" + "".join(f"\x1b]0;pwn\x07,0,{e},{e + 1}\n" for e in range(8)))
    done = dysharp("routing", str(tmp_path / "c.csv"), "--gpus", "4")
    assert done.code == 0
    assert "\\x1b]0;pwn\\x07" in done.out
    assert "\x1b" not in done.out
    as_json = dysharp("routing", str(tmp_path / "c.csv"), "--gpus", "4", "--json").out
    assert json.loads(as_json)["layers"][0]["source"] == "\x1b]0;pwn\x07"


def test_a_huge_argument_is_cut(dysharp: Call) -> None:
    refused(dysharp("run", "x" * 1_000_000), "unknown")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("vllm serve deepseek-ai/DeepSeek-V3 --tensor-paralel-size 8", 'did you mean "--tensor-parallel-size"'),
        ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 '", "expected closed quotes"),
        ("trtllm-serve deepseek-ai/DeepSeek-V3 --config missing.yml", "missing.yml: cannot be read"),
        ("[bold]\x1b[31m$(touch made)`touch made`", "no commands of an engine"),
        ("vllm serve deepseek-ai/DeepSeek-V3 -tp 16; touch made", "expected a --cluster of as many"),
    ],
)
def test_a_hostile_launch_line(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused(dysharp("serve", "--launch", line), text)
    assert not list(tmp_path.iterdir())  # nothing ran
