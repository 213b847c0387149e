"""Leading tokens at the burst level, which clusters with several NVLink domains have."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli

SMALL = {"model": "S-8", "cluster": "paper-dgx-h100-x4", "gpus": 16, "routing": "uniform"}


@pytest.mark.slow
def test_leading_tokens_are_near_the_whole_layer() -> None:
    whole = dysharp.run("deepep", tokens=2048, **SMALL)
    part = dysharp.run("deepep", tokens=2048, window=768, **SMALL)
    assert part.window["of_tokens"] == 2048
    assert part.layer_us == pytest.approx(whole.time_us, rel=0.05)


def test_one_domain_simulates_all_tokens() -> None:
    with pytest.raises(ConfigError, match="and one NVLink domain, expected"):
        dysharp.run("deepep", tokens=2048, window=768, **(SMALL | {"gpus": 8}))


@pytest.mark.slow
def test_compare_prints_the_whole_layer() -> None:
    args = ["compare", "--systems", "deepep,megatron-a2a", "--model", "S-8", "--cluster", "paper-dgx-h100-x4", "--gpus", "16"]
    shown = CliRunner().invoke(cli, [*args, "--tokens", "2048", "--window", "768", "--routing", "uniform"])
    assert shown.exit_code == 0, shown.output
    assert "the table is of the first 768 tokens of each GPU; this is the estimate for all 2048" in shown.stdout
    assert "us for the first 768 tokens" in " ".join(shown.stdout.split())


def test_systems_that_only_names_run() -> None:
    """`compare` without names leaves out the systems whose runs or estimates over domains would fail or take too long."""
    found = {row.system for row in dysharp.compare(tokens=8, **SMALL).rows}
    assert found == {"deepep", "deepep-ll", "deepep-v2", "dysharp", "hybrid-ep", "megatron-a2a", "nccl-ep", "uccl-ep"}


LARGE = {**SMALL, "tokens": 256, "systems": ["deepep"]}


def test_compare_stops_a_large_layer_when_its_time_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, names the way to all tokens, and gives what the same window gives; `window` 0 and `exact` simulate all tokens."""
    monkeypatch.setattr("dysharp.api.comparison.WHOLE_ROWS", 10_000)
    monkeypatch.setattr("dysharp.api.comparison.PRECISION", 1e9)
    monkeypatch.setattr("dysharp.runs.known.FEWEST", 64)
    monkeypatch.setattr("dysharp.runs.known.REFUSED", 1e9)
    done = dysharp.compare(**LARGE)
    asked = dysharp.compare(**LARGE, window=64)
    assert [row.window for row in done.rows] == [row.window for row in asked.rows] != [{}]
    assert any("--exact simulates all" in line for line in done.header)
    for whole in (dysharp.compare(**LARGE, window=0), dysharp.compare(**LARGE, exact=True)):
        assert not any(row.window for row in whole.rows)


def test_a_layer_that_is_not_known_runs_with_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.api.comparison.WHOLE_ROWS", 10_000)
    monkeypatch.setattr("dysharp.api.comparison.PRECISION", 1e-12)
    monkeypatch.setattr("dysharp.runs.known.FEWEST", 32)
    done, whole = dysharp.compare(**LARGE), dysharp.compare(**LARGE, exact=True)
    assert [(row.window, row.digest) for row in done.rows] == [({}, row.digest) for row in whole.rows]
