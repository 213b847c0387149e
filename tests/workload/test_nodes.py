"""Load of NVLink and NICs over several domains: closed forms, a slow place of experts, refusals, the printed table."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.specs import load_model
from dysharp.workload.closed import expected_copies
from dysharp.workload.describe import describe_nodes

MODEL = load_model("deepseek-v3")


@pytest.mark.parametrize(("gpus", "remote"), [(16, 1.0), (32, 2.71), (64, 4.63)])
def test_uniform_routing_has_the_closed_forms(gpus: int, remote: float) -> None:
    two, direct, _ = describe_nodes("uniform", [gpus], 8, model=MODEL, tokens_per_gpu=128)
    assert two.nic.rows_out == pytest.approx(remote, rel=0.02)
    assert two.domains_per_token == pytest.approx(two.domains_uniform, rel=0.02)
    assert two.nvlink.rows_out == pytest.approx(expected_copies(gpus, 256, 8) * 7 / 8, rel=0.02)
    assert direct.nic.rows_out == pytest.approx(8 * (1 - 8 / gpus), rel=0.02)


def test_hot_experts_fill_the_nics_of_their_node() -> None:
    """All rows of hot experts go to one node; two hops spread them over its NICs, a row per expert does not."""
    two, direct, _ = describe_nodes("hot-rank:share=0.3", [32], 8, model=MODEL, tokens_per_gpu=128)
    assert direct.nic.in_max_mean > 3 * two.nic.in_max_mean
    assert two.nic.rows_out == two.nic.rows_in


@pytest.mark.parametrize("gpus", [8, 12])
def test_gpus_that_are_no_domains(gpus: int) -> None:
    with pytest.raises(ConfigError, match=f"found {gpus} GPUs, expected a multiple of 8 above it"):
        describe_nodes("uniform", [gpus], 8, model=MODEL, tokens_per_gpu=8)


def test_the_command_prints_and_refuses() -> None:
    run = CliRunner()
    args = ["routing", "uniform", "--gpus", "16", "--tokens", "32", "--domain", "8"]
    shown = run.invoke(cli, [*args, "--model", "deepseek-v3"])
    assert "Dispatch over NVLink domains of 8 GPUs, rows per token" in shown.stdout
    assert "multicast (hypothetical switch)" in shown.stdout
    assert all(len(line) <= 100 for line in shown.stdout.splitlines())
    fields = json.loads(run.invoke(cli, [*args, "--model", "deepseek-v3", "--json"]).stdout)
    assert [row["scheme"] for row in fields["nodes"]] == ["two_hop", "direct", "dysharp"]
    bare = [*args[:1], "deepseek-v2-lite", *args[2:], "--model", "deepseek-v2-lite"]
    assert "Dispatch over NVLink domains of 8 GPUs" in run.invoke(cli, bare).stdout
    refused = run.invoke(cli, ["routing", "trace:deepseek-v2-lite", "--domain", "8"])
    assert isinstance(refused.exception, ConfigError)
    assert "found no --model, expected a model: " in str(refused.exception)
