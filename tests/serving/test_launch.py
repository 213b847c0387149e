"""Commands that start: the checkpoint's name, hosts, what an engine refuses, disaggregated pools."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dysharp import serve
from dysharp.costs.machine import machine_of
from dysharp.model.formats import formats_of
from dysharp.serving.engine import engine_of
from dysharp.serving.exchange import EP_SYSTEMS
from dysharp.serving.launch import start_of, tables
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import list_whole_models, load_cluster, load_whole

WHEN = {
    "tp", "dp", "ep", "pp", "cut", "slots", "draft_tokens", "hosts", "kv", "wide", "ampere", "odd", "amd", "csa", "part", "gathered_steps",
    *EP_SYSTEMS, "together", "prefill", "decode",
}  # fmt: skip
ENGINES = ("vllm", "sglang", "trtllm")
NODES: dict[str, Any] = {"model": "deepseek-v3", "cluster": "hw-dgx-h200-x2"}


def replica(layout: str, model: str = "deepseek-v3", cluster: str = "hw-dgx-h200-x2") -> Replica:
    return Replica(load_whole(model), formats_of("fp8"), serve_layout_of(layout), machine_of(load_cluster(cluster), "serving"))


def test_every_rule_holds_words_or_a_reason_with_its_source() -> None:
    known = {"adds", "line", "before", "refuses", "notes"}
    for name in ENGINES:
        table = tables()[name]
        assert table["source"]
        for rule in table["rules"]:
            assert known & set(rule)
            assert rule.keys() <= known | {"when", "source"}
            assert rule["when"].keys() <= WHEN
            assert "source" in rule or not {"refuses", "notes"} & set(rule)


def test_commands_name_the_checkpoint() -> None:
    assert serve(**NODES, layouts=["tp=8"]).launch().startswith("vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8")
    named = [load_whole(name).repository for name in list_whole_models()]
    assert sum("/" in one for one in named) >= 30
    assert load_whole("deepseek-v3.2").repository != load_whole("deepseek-v3").repository  # the one is made from the other
    said_of = serve(**NODES, layouts=["tp=8,pp=2"], precision="fp4").starting()
    assert said_of[-1] == "deepseek-ai/DeepSeek-V3 holds fp8-block weights: name a checkpoint in bf16 and nvfp4."


def test_a_command_finds_the_folder_of_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "my llama"
    folder.mkdir()
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 128256, **shape}))
    for given in (folder, folder / "config.json"):
        assert serve(str(given), "hw-dgx-h100", layouts=["tp=1"]).launch().startswith(f"vllm serve '{folder}' --tensor-parallel-size 1")
    narrow = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}  # engines take FP8 caches by default
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 128256, **shape, "quantization_config": narrow}))
    for engine, flag in (("vllm", "--kv-cache-dtype bfloat16"), ("sglang", "--kv-cache-dtype bf16"), ("trtllm", "dtype: bfloat16")):
        starts = {kv: serve(str(folder), "hw-dgx-h100", layouts=["tp=1"], engine=engine, kv=kv).launch() for kv in ("fp8", "bf16", None)}
        assert flag in starts["bf16"]
        assert "dtype" not in starts["fp8"] + starts[None]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_gpu_lacks_is_not_started_without_a_word(engine: str) -> None:
    """Triton on SM80 has no fp8e4nv (vllm issue 26431), and TensorRT-LLM's support matrix has no FP8 there."""
    for cluster, kv, says in (("hw-dgx-a100", "fp8", True), ("hw-dgx-a100", "bf16", False), ("hw-dgx-h100", "fp8", False)):
        asked = Replica(load_whole("llama3-8b"), formats_of("bf16", kv), serve_layout_of("tp=1"), machine_of(load_cluster(cluster), "serving"))
        start = start_of(engine_of(engine), asked, Scenario(8.0, 1000.0, 500.0))
        assert ["FP8" in start.notes, "FP8" in start.refuses] == [says and engine != "trtllm", says and engine == "trtllm"]
    amd = Replica(load_whole("llama3-8b"), formats_of("bf16"), serve_layout_of("tp=1"), machine_of(load_cluster("hw-mi355x"), "serving"))
    assert ("NVIDIA" in start_of(engine_of(engine), amd, Scenario(8.0, 1000.0, 500.0)).refuses) == (engine == "trtllm")


@pytest.mark.parametrize(
    ("model", "layout", "precision", "says"),
    [
        ("qwen3-235b", "tp=8", "fp8", True),
        ("qwen3-235b", "tp=8,ep=8", "fp8", False),
        ("qwen3-235b", "tp=4", "fp8", False),
        ("qwen3-235b", "tp=8", "bf16", False),
        ("qwen3-next-80b", "tp=8,ep=8", "fp8", True),
        ("qwen3-next-80b", "tp=4,ep=4", "fp8", False),
        ("qwen3-next-80b", "tp=4,dp=2,ep=8", "fp8", False),
        ("deepseek-v3", "tp=16", "fp8", False),
        ("qwen3-32b", "tp=8", "fp8", False),
        ("qwen3-32b", "tp=16", "fp8", True),
        ("glm-4.5", "tp=8", "fp8-tensor", False),
    ],
)
def test_ffns_that_are_cut_inside_a_block_stop_a_server(model: str, layout: str, precision: str, says: bool) -> None:
    """Qwen3-235B-FP8 in TP8: "output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128" (vllm 17569). So
    are a shared expert of 512 in TP8 and a dense FFN of 25,600 in TP16."""
    asked = replace(replica(layout, model), formats=formats_of(precision))
    notes = [start_of(engine_of(name), asked, Scenario(8.0, 1000.0, 500.0)).notes for name in ("vllm", "sglang")]
    assert ["block of 128" in note for note in notes] == [says, says]
    ampere = replace(asked, formats=replace(asked.formats, kv="fp8"), machine=machine_of(load_cluster("hw-dgx-a100"), "serving"))
    both = start_of(engine_of("vllm"), ampere, Scenario(8.0, 1000.0, 500.0)).notes  # all notes, not the first alone
    assert ("Ampere has no FP8" in both, "block of 128" in both) == (True, says)


@pytest.mark.parametrize(
    ("engine", "words"),
    [("vllm", "--nnodes 2 --node-rank $RANK"), ("sglang", "--dist-init-addr $HEAD:5000"), ("trtllm", "srun -N 2 --ntasks-per-node 8")],
)
def test_several_hosts(engine: str, words: str) -> None:
    scenario, rules = Scenario(64.0, 1000.0, 500.0), engine_of(engine)
    assert words in start_of(rules, replica("tp=8,pp=2"), scenario).command
    assert words.split(maxsplit=1)[0] not in start_of(rules, replica("tp=8"), scenario).command


def test_a_host_of_a_rack_has_four_gpus() -> None:
    for cluster, hosts in (("hw-gb200-nvl72", 4), ("hw-dgx-h200-x2", 2)):
        assert start_of(engine_of("vllm"), replica("dp=16,ep=16", cluster=cluster), Scenario(64.0, 1000.0, 500.0)).hosts == hosts


REFUSED = [
    ("trtllm", "tp=8,pp=2", 1, "exclude each other"),
    ("trtllm", "tp=8,dp=2,ep=16", 0, "groups have one GPU"),
    ("sglang", "tp=8,dp=2,ep=8", 0, "cuts none"),
    ("sglang", "tp=4,dp=2,ep=8,pp=2", 1, "excludes attention groups"),
    ("vllm", "tp=8,ep=4", 0, "cuts none"),
]


@pytest.mark.parametrize(("engine", "layout", "drafts", "words"), REFUSED)
def test_what_an_engine_refuses(engine: str, layout: str, drafts: int, words: str) -> None:
    scenario = Scenario(64.0, 1000.0, 500.0, 1.0 + drafts, drafts)
    assert words in start_of(engine_of(engine), replica(layout), scenario).refuses
    for plain in ("tp=8", "tp=8,ep=8", "dp=16,ep=16"):
        assert not start_of(engine_of(engine), replica(plain), scenario).refuses


def test_a_refused_layout_is_not_started() -> None:
    found = serve(**NODES, engine="trtllm", layouts=["tp=8,dp=2,ep=16", "dp=16,ep=16"], slo="ttft=9s,tpot=200ms")
    groups, single = (next(p for p in found.best if p.replica.layout.tp == tp) for tp in (8, 1))
    found = replace(found, best=(groups, single))
    refused, start = found.starting()[:2]
    assert refused.startswith("TP8 DP2 EP16 does not start with trtllm")
    assert start.startswith("Start DP16 EP16 with trtllm")
    assert "enable_attention_dp: true" in found.launch()
    assert replace(found, best=(groups,)).launch() == ""


def test_drafts_beside_stages() -> None:
    scenario, own = Scenario(64.0, 1000.0, 500.0, 1.8, 1), replica("tp=8,pp=2")
    assert "0.28 and 0.29 refuse" in start_of(engine_of("vllm"), own, scenario).notes
    assert start_of(engine_of("sglang"), own, scenario).command.startswith("SGLANG_ENABLE_PP_SPEC=1 python")
    assert "prefill servers alone" in start_of(engine_of("sglang"), own, scenario, "decode").refuses
    assert not start_of(engine_of("sglang"), own, scenario, "prefill").refuses


def test_disaggregated_servers() -> None:
    found = serve("deepseek-v3", "hw-dgx-h200-x2", engine="sglang", layouts=["tp=8,ep=8", "dp=8,ep=8"])
    assert found.disaggregated is not None
    lines = "\n".join(found.starting())
    for part in (
        "Disaggregated, prefill: python",
        "--disaggregation-mode prefill",
        "--disaggregation-mode decode",
        "launch_router --pd-disaggregation",
    ):
        assert part in lines


LOW = "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 -ep --all2all-backend deepep_low_latency"


@pytest.mark.parametrize("asked", [{"layouts": ["dp=8,ep=8"]}, {"launch": LOW}])
def test_each_pool_starts_the_kernels_it_is_charged(asked: dict[str, Any]) -> None:
    """A server of both has the kernels of one flag; of two pools each has its own."""
    found = serve("deepseek-v3", "hw-dgx-h200-x2", **asked)
    lines = [line.partition("--all2all-backend ")[2].split()[0] for line in found.starting() if line.startswith("Disaggregated")]
    assert lines == ["deepep_high_throughput", "deepep_low_latency"]


@pytest.mark.parametrize(("engine", "near", "far"), [
    ("vllm", "flashinfer_nvlink_one_sided", "deepep_high_throughput"), ("sglang", "flashinfer", "deepep --deepep-mode normal"),
])  # fmt: skip
def test_kernels_of_a_domain_do_not_start_beyond_it(engine: str, near: str, far: str) -> None:
    """TensorRT-LLM's exchange passes NVLink alone: over two nodes DeepEP's is charged, and was printed as the other."""
    for layout, words in (("dp=8,ep=8", near), ("dp=16,ep=16", far)):
        own = replace(replica(layout), ep_system="trtllm-a2a")
        command = start_of(engine_of(engine), own, Scenario(64.0, 1000.0, 500.0)).command
        assert f"a2a-backend {words}" in command or f"all2all-backend {words}" in command
        assert own.layout.ep > 8 or "deepep" not in command


def test_fp8_means_what_a_models_own_checkpoint_holds() -> None:
    """GLM-4.5-FP8 has scales by channel (compressed-tensors): TP8 cuts no block, asked for by a name, a line or not at all."""
    for asked in ({}, {"precision": "fp8"}, {"launch": "vllm serve zai-org/GLM-4.6-FP8 --tensor-parallel-size 8"}):
        done = serve(*(() if "launch" in asked else ("glm-4.5",)), layouts=None if "launch" in asked else ["tp=8"], **asked)  # type: ignore[arg-type]
        assert done.formats["weights"]["experts"] == "fp8"
        assert not any("block" in line for line in done.starting())
    assert serve("glm-4.5", layouts=["tp=8"], precision="fp8,weights=fp8-block").formats["weights"]["experts"] == "fp8-block"
