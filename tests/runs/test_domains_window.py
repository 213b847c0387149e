"""Leading tokens at the burst level, which clusters with several NVLink domains have."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli

SMALL = {"model": "S-8", "cluster": "paper-dgx-h100-x4", "gpus": 16, "routing": "uniform"}


def test_leading_tokens_are_near_the_whole_layer() -> None:
    whole = dysharp.run("deepep", tokens=2048, **SMALL)
    part = dysharp.run("deepep", tokens=2048, window=768, **SMALL)
    assert part.window["of_tokens"] == 2048
    assert part.layer_us == pytest.approx(whole.time_us, rel=0.05)


def test_one_domain_simulates_all_tokens() -> None:
    with pytest.raises(ConfigError, match="and one NVLink domain, expected"):
        dysharp.run("deepep", tokens=2048, window=768, **(SMALL | {"gpus": 8}))


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


def test_compare_chooses_leading_tokens_of_a_large_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, names the way to all tokens, and gives what the same window gives; `window` 0 simulates all tokens."""
    monkeypatch.setattr("dysharp.runs.leading.WHOLE_ROWS", 10_000)
    monkeypatch.setattr("dysharp.runs.leading.LEADING_ROWS", 64 * 16 * 8)
    monkeypatch.setattr("dysharp.runs.leading.REFUSED", 1e9)
    done = dysharp.compare(**LARGE)
    asked = dysharp.compare(**LARGE, window=64)
    assert [row.window for row in done.rows] == [row.window for row in asked.rows] != [{}]
    assert any("--window 0 simulates all" in line for line in done.header)
    whole = dysharp.compare(**LARGE, window=0)
    assert not any(row.window for row in whole.rows)


def test_a_system_without_an_estimate_runs_with_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.runs.leading.WHOLE_ROWS", 10_000)
    monkeypatch.setattr("dysharp.runs.leading.LEADING_ROWS", 32 * 16 * 8)
    monkeypatch.setattr("dysharp.runs.leading.REFUSED", 0.0)
    done = dysharp.compare(**{**LARGE, "tokens": 128})
    whole = dysharp.compare(**{**LARGE, "tokens": 128}, window=0)
    assert [row.time_us for row in done.rows] == [row.time_us for row in whole.rows]
    assert any("32 leading tokens give no estimate, so all 128 were simulated" in line for line in done.header)
