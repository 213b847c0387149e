"""`dysharp.step`: one step of a whole model, from Rows to tokens per second."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.api import training
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.costs.machine import Machine
from dysharp.planning.layers import pieces_of
from dysharp.runs.store import digest_of
from dysharp.specs import load_cluster, load_model, load_whole
from dysharp.training.answers import EVEN
from dysharp.training.recipe import TrainingRecipe

SMALL: dict[str, Any] = {"layout": "pp=3,ep=4,m=6", "sequence": 32, "systems": ["deepep", "dysharp", "ideal"]}
NAMES = ("--layout", "pp=3,ep=4,m=6", "--sequence", "32", "--systems", "deepep,dysharp")


@pytest.fixture(scope="module")
def done() -> Any:
    return dysharp.step("deepseek-v2-lite", "paper-gh200-nvl32", **SMALL)


def test_shares_add_up_and_speed_follows_from_time(done: Any) -> None:
    assert [one.step_us for one in done.steps] == sorted(one.step_us for one in done.steps)
    for one in done.steps:
        assert sum(one.shares.values()) == pytest.approx(1)
        assert min(one.shares.values()) >= 0
        assert one.tokens_per_s_gpu == pytest.approx(6 * 4 * 32 / (one.step_us / 1e6) / 12)
        assert 0 < one.mfu < 1
    row = dysharp.run("deepep", model="deepseek-v2-lite", gpus=4, tokens=32, routing="normal-cv:0.256")
    assert next(one for one in done.steps if one.system == "deepep").ep.forward == row.time_us


def test_json_has_the_fields_of_the_design(done: Any) -> None:
    found = json.loads(json.dumps(done.to_dict()))
    assert {"tokens_per_s_gpu", "mfu", "step_us", "memory", "bubble", "steps", "sentence", "schedule"} <= set(found)
    assert found["tokens_per_s_gpu"] == done.best.tokens_per_s_gpu
    assert {"exposed_us", "ranks_us", "path_us"} <= set(found["steps"][0])
    assert found["memory"]["reserved_bytes"] > 1e9
    assert done.sentence() in str(done)


def test_the_answer_is_a_system_that_one_could_build_and_says_what_would_help(done: Any) -> None:
    assert done.best.system != "ideal"
    assert "What would help: " in done.sentence()
    gains = done.to_dict()["gains"]
    assert set(gains) == {
        "twice the micro-batches", "sends that cost nothing", "EP communication that costs nothing",
        "gradient and parameter traffic that costs nothing",
    }  # fmt: skip
    assert all(gain >= 0 for gain in gains.values())
    twice = dysharp.step("deepseek-v2-lite", "paper-gh200-nvl32", "pp=3,ep=4,m=12", sequence=32, systems=[done.best.system])
    assert gains["twice the micro-batches"] == pytest.approx(twice.best.tokens_per_s_gpu / done.best.tokens_per_s_gpu - 1)


def test_ranks_of_a_group_lie_as_far_apart_as_experts_are_cut() -> None:
    """Eight ranks, two GPUs apart, are in two domains of eight GPUs: their rows go over NICs, and one domain does not hold them."""
    asked: Any = {"systems": ["deepep"], "sequence": 512}
    inside, across = (
        dysharp.step("deepseek-v2-lite", f"hw-dgx-h100-x2{change}", "tp=2,ep=8,etp=2,dp=8,m=1", **asked).best.ep
        for change in (",scale_out.domain_gpus=16", "")
    )  # fmt: skip
    assert inside is not None
    assert across is not None
    assert across.forward_wire > 1.5 * inside.forward_wire
    with pytest.raises(ConfigError, match="ep: found 8 x etp 2, expected at most the 8 GPUs of the only NVLink domain"):
        dysharp.step("deepseek-v2-lite", "hw-dgx-h100", "tp=2,ep=8,etp=2,dp=8,m=1", **asked)


def test_a_wait_for_shared_weights_is_no_computing() -> None:
    """Over slow NICs every micro-batch waits for the weights of its layers: `step` and `plan` call that traffic, not computing."""
    layout, machine = "tp=8,pp=2,dp=4,fsdp=4,m=8", "hw-dgx-h100-x8,scale_out.nic_GBps=25"
    found, apart = (dysharp.step("llama3-70b", machine, one) for one in (layout, layout.replace("fsdp=4,", "")))
    shares = found.best.shares
    assert shares["compute"] * found.best.step_us < 1.05 * apart.best.shares["compute"] * apart.best.step_us
    assert shares["data_parallel"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    assert "gradient and parameter traffic that costs nothing" in found.sentence()
    planned = dysharp.plan("llama3-70b", 64, machine, batch=32, check=layout, quick=True).checked
    assert planned.parts["gradients and parameters"] / planned.step_us == pytest.approx(shares["data_parallel"], abs=0.02)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_no_system_beats_the_bound(schedule: str) -> None:
    """The GPU with most rows computes as long under every system, so a merged pair is no shorter than its computing."""
    found = dysharp.step(
        "deepseek-v2-lite", "paper-gh200-nvl32", "pp=2,ep=8,m=4,stages=Et*14|t*13L", schedule, ["dysharp", "ideal"], sequence=256
    )  # fmt: skip
    times = {one.system: one.step_us for one in found.steps}
    assert times["dysharp"] >= times["ideal"]


def test_a_system_that_drops_rows_is_marked_and_not_the_answer() -> None:
    found = dysharp.step("deepseek-v2-lite", "paper-gh200-nvl32", "ep=4,m=2", systems=["tutel", "nvls"], sequence=256, routing="powerlaw:1")
    assert found.best.system == "nvls"
    assert sorted(one.dropped_rows > 0 for one in found.steps) == [False, True]
    assert "tutel*" in str(found)
    assert any(line.startswith("* tutel drops ") for line in found.header)


def test_tensor_parallelism_beyond_a_domain_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"layout: tp: found 16, expected groups inside an NVLink domain of 8 GPUs"):
        dysharp.step("llama3-8b", "hw-dgx-h100", "tp=16,m=2")


def test_a_dense_model_has_no_ep_system() -> None:
    dense = dysharp.step("llama3-8b", "hw-dgx-h100", "tp=4,pp=2,m=4", sequence=1024)
    assert [one.system for one in dense.steps] == ["no EP"]
    assert not any("MoE" in line or "expert" in line for line in dense.header)
    assert "MFU: Megatron's count of model FLOPs over the dense peak of its GEMMs' type." in dense.header
    assert dense.best.shares["exposed EP"] == 0
    assert 0.05 < dense.best.mfu < 0.8
    assert max(dense.gains, key=dense.gains.__getitem__) == "launches that cost nothing"  # they bound 1024 tokens
    assert dense.best.limit == "launches"


def test_launches_are_no_computing_and_are_those_of_a_plan() -> None:
    """Without a pipeline nothing else changes when launches cost nothing, so that their share says what this gains."""
    done = dysharp.step("deepseek-v2-lite", "hw-dgx-h100", "ep=8,m=1", systems=["deepep"], sequence=256)
    one, (rank,) = done.best, done.best.to_dict()["ranks_us"]
    assert one.limit == "launches"
    assert "most of the rest is waiting for launches" in done.sentence()
    assert sum(one.shares.values()) == pytest.approx(1)
    assert sum(rank.values()) == pytest.approx(one.step_us) == pytest.approx(sum(one.to_dict()["path_us"].values()))
    assert rank["launches"] == pytest.approx(one.shares["launches"] * one.step_us)
    assert done.gains["launches that cost nothing"] == pytest.approx(1 / (1 - one.shares["launches"]) - 1)
    model = load_whole("deepseek-v2-lite")
    args = (model, Machine(load_cluster("hw-dgx-h100")), done.layout, 256, "deepep", "none", TrainingRecipe(host=True), 1.0, one.ep)
    plan = pieces_of(*args)
    assert rank["launches"] == pytest.approx(sum(plan.waits("d" if n < model.dense_layers else "t")[1] for n in range(model.n_layers)))


def test_five_systems_are_five_rows() -> None:
    names = ["deepep", "megatron-a2a", "dysharp-comet", "dysharp-basic", "ideal"]
    text = str(dysharp.step("deepseek-v2-lite", "paper-gh200-nvl32", "pp=3,ep=4,m=6", systems=names, sequence=32)).splitlines()
    assert sorted(line.split()[0] for line in text[2:7]) == sorted(names)
    assert max(map(len, text[:7])) <= 100
    assert "launches" in text[0]


def test_the_command_answers_first_and_writes_a_timeline(tmp_path: Path) -> None:
    file = tmp_path / "step.perfetto-trace"
    ran = CliRunner().invoke(cli, ["step", "deepseek-v2-lite", *NAMES, "--timeline", str(file)])
    assert ran.exit_code == 0, ran.output
    lines = ran.stdout.splitlines()
    assert "tokens/s per GPU" in lines[0]
    assert any(line.startswith("deepep") for line in lines)
    assert file.stat().st_size > 1000
    assert "Not modelled" in ran.stderr
    asked = CliRunner().invoke(cli, ["step", "deepseek-v2-lite", *NAMES, "--json"])
    assert json.loads(asked.stdout)["gpus"] == 12


def test_arguments_of_megatron_are_a_layout(done: Any) -> None:
    args = "--pipeline-model-parallel-size 3 --expert-model-parallel-size 4 --seq-length 32 --delay-wgrad-compute"
    args += " --overlap-grad-reduce --overlap-param-gather"
    ran = CliRunner().invoke(cli, ["step", "deepseek-v2-lite", "--megatron-args", args, "--layout", "m=6", "--systems", "deepep", "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["step_us"] == next(one for one in done.steps if one.system == "deepep").step_us
    assert "not read: delay_wgrad_compute=True." in " ".join(ran.stderr.split())
    without = CliRunner().invoke(cli, ["step", "deepseek-v2-lite"])
    assert without.exit_code != 0
    assert "layout: found none, expected --layout or --megatron-args" in str(without.exception or without.output)


@pytest.mark.parametrize(
    ("layout", "schedule", "message"),
    [
        ("pp=28,ep=4", None, "pp x vpp: found 28, expected at most layers = 27"),
        ("pp=3,ep=4", "zbv", "schedule zbv: found vpp=1, expected 2"),
        ("pp=3,ep=4,m=6", "zb-2p", "schedule zb-2p: found a greedy family, expected one with a fixed order"),
        ("pp=3,ep=4,m=6,mbs=512", "1f1b", "memory: found .* GiB on pipeline rank 0, expected at most"),
    ],
)
def test_a_step_that_cannot_be_is_one_line(layout: str, schedule: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dysharp.step("deepseek-v2-lite", "paper-gh200-nvl32", layout, schedule, sequence=4096)


def test_a_machine_without_the_products_has_no_copies_for_them() -> None:
    """An A100 multiplies in BF16, whatever the precision: FP8 copies of weights would only take its memory."""
    wide, narrow = (dysharp.step("llama3-8b", "hw-dgx-a100", "tp=2,dp=4,m=4", precision=name) for name in ("bf16", "fp8"))
    assert narrow.memory.peak.allocated == wide.memory.peak.allocated
    assert narrow.best.step_us == pytest.approx(wide.best.step_us, rel=1e-3)


def test_a_precision_changes_products_and_bytes_and_what_the_answer_says() -> None:
    def asked(**more: Any) -> Any:
        return dysharp.step("llama3-8b", "hw-dgx-h200", "tp=2,dp=4,m=4", **more)

    plain, wide, narrow, mixed = (asked(precision=name) for name in (None, "bf16", "fp8", "fp8,products=bf16"))
    assert plain.to_dict() == wide.to_dict()
    assert narrow.best.step_us < wide.best.step_us == mixed.best.step_us
    assert narrow.memory.peak.allocated > wide.memory.peak.allocated
    assert wide.memory.peak.allocated == mixed.memory.peak.allocated  # products in BF16 need no copies
    assert narrow.best.mfu / narrow.best.tflops == pytest.approx(wide.best.mfu / wide.best.tflops / 2, rel=0.01)  # of peaks
    assert narrow.formats["products"]["dense"] == "fp8"
    asked_fp8 = {"systems": ["deepep"], "recompute": ["full"], "precision": "fp8", "quick": True}
    kept = dysharp.step("qwen3-30b", "hw-dgx-h100", "ep=8,gpus=64,m=4", **asked_fp8)  # FP8 would slow its small experts: they hold no copies
    assert kept.formats["products"]["experts"] == "bf16"
    assert kept.formats["sent"] == "fp8"  # as deepep sends to a layer in FP8, in a quick answer, too
    assert kept.memory.peak.allocated == dysharp.describe("qwen3-30b", layout="ep=8,gpus=64,m=4", recompute=["full"]).memory[0]["allocated"] * 2**30
    assert "formats: weights fp8-block (dense), bf16; products fp8 (dense), bf16; KV bf16; state fp8" in narrow.header  # collectives hide attention
    args = "--bf16 --fp8-format e4m3 --fp8-recipe blockwise --overlap-grad-reduce --overlap-param-gather"
    assert asked(megatron=f"{args} --tp-comm-overlap").best.step_us == narrow.best.step_us < asked(megatron=args).best.step_us
    late = asked(megatron=args.replace("--overlap-grad-reduce", "--tp-comm-overlap")).best  # reduced behind the passes
    assert late.shares["data_parallel"] > 3 * narrow.best.shares["data_parallel"]


def test_the_best_plan_of_a_dense_model_takes_as_long_as_its_step() -> None:
    """Tensor parallel traffic of dense models runs beside GEMMs in both, as in the measured steps that give the error bar."""
    tries = ["tp=4", "pp=1", "recompute=layernorm", "offload=none"]
    best = dysharp.plan("llama3-70b", cluster="hw-dgx-b200-x2", gpus=16, batch=32, quick=True, tries=tries)
    entry = best.to_dict()["shapes"][0]["best"][0]
    done = dysharp.step("llama3-70b", "hw-dgx-b200-x2", entry["layout"], schedule=entry["schedule"], recompute=entry["recompute"])
    assert done.best.step_us / 1e6 == pytest.approx(entry["step_s"], rel=0.01)
    assert not any("overlap of tensor" in line for line in done.header)


def test_simulated_layers_multiply_in_the_type_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose config says FP8, in both types: Rows differ, and so do the keys under which they are kept."""
    seen: list[str] = []
    real = training.rows_both_ways

    def spy(*args: Any, **asked: Any) -> Any:
        seen.append(asked["model"].gemm_dtype)
        return real(*args, **asked)

    monkeypatch.setattr(training, "rows_both_ways", spy)
    asked: dict[str, Any] = {"layout": "ep=4,m=2", "sequence": 32, "systems": ["deepep"]}
    layer = replace(load_model("deepseek-v2-lite"), gemm_dtype="fp8", n_layers=1)
    model = replace(load_whole("deepseek-v2-lite"), dense_layers=0, layer=layer)
    found = [dysharp.step(model, "hw-dgx-h200", precision=name, **asked) for name in (None, "bf16", "fp8", "bf16,sent=fp8")]
    assert seen == ["fp8", "bf16", "fp8", "bf16"]
    default, wide, narrow, sent = (one.best.ep for one in found)
    assert default == narrow != wide
    assert sent.forward_wire < wide.forward_wire
    assert (found[1].formats["sent"], found[3].formats["sent"], found[3].formats["back"]) == ("bf16", "fp8", "bf16")
    assert digest_of(layer) != digest_of(replace(layer, gemm_dtype="bf16"))  # what keys of kept Rows have of a model


def test_a_bound_has_no_interval() -> None:
    """A quick answer over nodes said that no step is faster, and that measured ones take 0.8 times as long."""
    found = dysharp.step("qwen3-30b", "hw-dgx-h100-x2", "ep=16,m=2", systems=["megatron-a2a"], quick=True)
    assert (found.best.stands_on, found.interval) == (training.BOUND, None)
    assert "No measurement judges a bound: a step takes at least so long." in found.header


def test_experts_of_equal_load_help_as_much_as_uniform_routing() -> None:
    """'94 % of the step is computing' stood over a step whose busiest rank computed for all others."""
    skewed, even = (
        dysharp.step("qwen3-30b", "hw-dgx-h200", "ep=8,m=2", systems=["megatron-a2a"], sequence=8192, routing=routing, quick=True)
        for routing in ("lognormal:0.65", "uniform")
    )
    assert skewed.gains[EVEN] > 0.03
    assert skewed.gains[EVEN] == pytest.approx(skewed.best.step_us / even.best.step_us - 1, abs=0.01)
    assert even.gains.get(EVEN, 0.0) < 0.01
