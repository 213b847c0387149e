"""What `answers.json` answers: questions to verbs, as data. New questions go to the end of their list."""

from __future__ import annotations

from typing import Any

Asked = tuple[str, str, dict[str, Any]]
"""(model or system, cluster, other keyword arguments of the verb)."""

H100, H200, B200, GB200, MI300X = "hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200", "hw-gb200-nvl72", "hw-mi300x"
A100 = "hw-dgx-h100,gpu=a100-sxm"
GROUPS = "tp=8;dp=8,ep=8;tp=2,dp=4,ep=8"

SERVE: list[Asked] = [
    ("llama3-8b", H100, {"gpus": 1, "layouts": "tp=1"}),
    ("llama3-8b", A100, {"gpus": 1, "layouts": "tp=1"}),
    ("llama3-8b", B200, {"gpus": 2, "layouts": "tp=2;dp=2", "precision": "fp8"}),
    ("llama3-8b", H100, {"gpus": 2, "layouts": "tp=2;pp=2", "engine": "sglang", "isl": 1024, "osl": 128}),
    ("qwen3-32b", H100, {"gpus": 4, "layouts": "tp=4;tp=2", "precision": "fp8", "kv": "fp8"}),
    ("qwen3-32b", H200, {"gpus": 2, "layouts": "tp=2", "precision": "int4"}),
    ("llama3-70b", H200, {"gpus": 8, "layouts": "tp=8;tp=4;tp=4,pp=2"}),
    ("llama3-70b", MI300X, {"gpus": 8, "layouts": "tp=8;tp=2"}),
    ("llama3-70b", B200, {"gpus": 8, "layouts": "tp=8", "precision": "fp4", "engine": "trtllm"}),
    ("llama3-70b", A100, {"gpus": 8, "layouts": "tp=8", "precision": "int4"}),
    ("llama3-405b", H100, {"gpus": 8, "layouts": "tp=8;tp=4,pp=2", "precision": "fp8"}),
    ("qwen3-30b", H100, {"gpus": 4, "layouts": "tp=4;dp=4,ep=4"}),
    ("qwen3-30b", H200, {"gpus": 2, "layouts": "tp=2;dp=2,ep=2", "precision": "fp8", "engine": "sglang"}),
    ("qwen3-235b", H200, {"gpus": 8, "layouts": GROUPS, "precision": "fp8"}),
    ("qwen3-235b", GB200, {"gpus": 8, "layouts": "tp=8;dp=8,ep=8", "precision": "fp4", "engine": "trtllm"}),
    ("qwen3-235b", MI300X, {"gpus": 8, "layouts": GROUPS}),
    ("mixtral-8x7b", H100, {"gpus": 4, "layouts": "tp=4;dp=4,ep=4;tp=2,pp=2"}),
    ("mixtral-8x22b", H100, {"gpus": 8, "layouts": "tp=8;tp=4,dp=2,ep=8", "precision": "fp8-tensor"}),
    ("gpt-oss-120b", H100, {"gpus": 8, "layouts": "tp=8;tp=4,dp=2,ep=8", "precision": "mxfp4"}),
    ("gpt-oss-120b", H100, {"gpus": 2, "layouts": "tp=2;dp=2,ep=2", "precision": "mxfp4", "kv": "fp8"}),
    ("gpt-oss-120b", B200, {"gpus": 4, "layouts": "tp=4;dp=4,ep=4", "precision": "mxfp4-fp8", "engine": "trtllm"}),
    ("gpt-oss-20b", H100, {"gpus": 1, "layouts": "tp=1", "precision": "mxfp4"}),
    ("gpt-oss-20b", MI300X, {"gpus": 2, "layouts": "tp=2"}),
    ("deepseek-v3", H200, {"gpus": 8, "layouts": GROUPS}),
    ("deepseek-v3", H200, {"gpus": 8, "layouts": "tp=8;dp=8,ep=8", "mtp": 1, "engine": "sglang"}),
    ("deepseek-v3", H200, {"gpus": 8, "layouts": "dp=8,ep=8", "routing": "lognormal:0.65"}),
    ("deepseek-v3", "hw-dgx-h200-x2", {"gpus": 16, "layouts": "dp=16,ep=16;tp=8,pp=2", "slo": "ttft=5s,tpot=100ms"}),
    ("deepseek-v3", "hw-dgx-h100-x2", {"gpus": 16, "layouts": "tp=8,dp=2,ep=16;tp=8,pp=2", "engine": "sglang"}),
    ("deepseek-v3", B200, {"gpus": 8, "layouts": GROUPS, "precision": "fp4", "engine": "trtllm"}),
    ("deepseek-v3", B200, {"gpus": 8, "layouts": "tp=8", "precision": "fp4-all", "engine": "trtllm", "mtp": 3}),
    ("deepseek-v3", GB200, {"gpus": 16, "layouts": "dp=16,ep=16;dp=8,ep=8", "precision": "fp4", "users": 2000}),
    ("deepseek-v3", GB200, {"gpus": 32, "layouts": "dp=32,ep=32", "ep_system": "trtllm-a2a", "isl": 1024, "osl": 1024}),
    ("deepseek-v3", "hw-mi300x", {"gpus": 8, "layouts": "tp=8;dp=8,ep=8"}),
    ("deepseek-v2-lite", H100, {"gpus": 2, "layouts": "tp=2;dp=2,ep=2", "precision": "bf16"}),
    ("deepseek-v3", H200, {"gpus": 8, "layouts": "dp=8,ep=8", "what_if": True}),
    ("kimi-k2", B200, {"gpus": 8, "layouts": "tp=8;dp=8,ep=8", "precision": "int4"}),
    ("glm-4.5-air", H100, {"gpus": 8, "layouts": GROUPS, "precision": "fp8"}),
    ("minimax-m2.5", H200, {"gpus": 4, "layouts": "tp=4;tp=2,dp=2,ep=4", "precision": "fp8"}),
    ("qwen3-next-80b", H200, {"gpus": 4, "layouts": "tp=4;dp=4,ep=4"}),
    ("deepseek-v3.2", H200, {"gpus": 8, "layouts": "tp=8;dp=8,ep=8", "isl": 32768, "osl": 512, "slo": "ttft=20s,tpot=100ms"}),
]

STEP: list[Asked] = [
    ("llama3-8b", H100, {"layout": "tp=2,dp=4,m=2"}),
    ("llama3-8b", H100, {"layout": "tp=4,pp=2,m=4", "sequence": 1024}),
    ("llama3-8b", H200, {"layout": "tp=2,pp=2,vpp=2,dp=2,m=8", "sequence": 8192}),
    ("llama3-8b", H100, {"layout": "tp=1,dp=8,fsdp=8,m=1", "recompute": ("full",)}),
    ("llama3-8b", B200, {"layout": "tp=2,cp=2,dp=2,m=2", "sequence": 16384, "precision": "fp8"}),
    ("llama3-8b", GB200, {"layout": "tp=1,pp=4,dp=2,m=8"}),
    ("llama3-8b", "paper-gh200-nvl32", {"layout": "tp=8,pp=2,m=4"}),
    ("llama3-8b", "paper-dgx-h100", {"layout": "tp=4,pp=2,vpp=2,m=4", "schedule": "zbv"}),
    ("llama3-8b", H100, {"layout": "tp=4,pp=2,m=4", "schedule": "zb-h1"}),
    ("llama3-70b", H100, {"layout": "tp=8,pp=4,vpp=5,m=16"}),
    ("llama3-70b", H100, {"layout": "tp=8,pp=8,m=16", "schedule": "gpipe"}),
    ("llama3-70b", B200, {"layout": "tp=4,pp=4,dp=2,m=8", "recompute": ("core_attn",)}),
    ("gpt3-175b", H100, {"layout": "tp=8,pp=8,vpp=6,m=16", "sequence": 2048, "precision": "fp8"}),
    ("deepseek-v2-lite", H100, {"layout": "ep=8,m=1", "systems": ["deepep"], "sequence": 256}),
    ("deepseek-v2-lite", H100, {"layout": "pp=3,ep=4,m=6", "systems": ["megatron-a2a", "hybrid-ep"], "sequence": 64}),
    ("deepseek-v2-lite", "paper-gh200-nvl32", {"layout": "pp=3,ep=4,m=6", "systems": ["deepep", "dysharp", "ideal"], "sequence": 32}),
    ("deepseek-v2-lite", "paper-gh200-nvl32", {"layout": "ep=4,m=2", "systems": ["tutel"], "sequence": 64, "routing": "powerlaw:1"}),
    ("moonlight-16b", B200, {"layout": "tp=1,ep=8,m=2", "systems": ["deepep"], "sequence": 128, "recompute": ("moe_act",)}),
]

STAGES = "stages=Et*3|(t*4|)*14t*2mL"
ONE = ("mbs=1", "cp=1", "etp=1")
V3 = {"batch": 2048, "n_best": 1, "gpus": 256}
V3_TRY = ("tp=1", "pp=16", "vpp=1", "ep=16", *ONE, "swap=none", "weights=whole")

PLAN: list[Asked] = [
    ("llama3-8b", "hw-dgx-h100", {"gpus": 8, "batch": 32, "n_best": 3}),
    ("llama3-8b", "hw-dgx-b200", {"gpus": 8, "batch": 32, "precision": "fp8", "tries": ("cp=1", "mbs=1,2", "swap=none"), "n_best": 3}),
    ("llama3-70b", "hw-dgx-h100-x8", {"gpus": 64, "batch": 256, "tries": ("tp=4,8", "pp=4", "mbs=1", "swap=none"), "n_best": 3}),
    ("llama3-70b", "hw-dgx-h200-x4", {"gpus": 32, "batch": 64, "tries": ("tp=1,2", "pp=1", "weights=sharded", "swap=none"), "n_best": 2}),
    ("qwen3-30b", "hw-dgx-h100-x2", {"gpus": 16, "batch": 64, "tries": ("tp=1", "pp=1,2", *ONE, "swap=none"), "n_best": 3}),
    ("qwen3-30b", "hw-gb200-nvl72", {"gpus": 64, "batch": 128, "tries": ("tp=1", "pp=1", *ONE, "swap=none", "system=hybrid-ep"), "n_best": 2}),
    ("mixtral-8x7b", "hw-dgx-h100-x8", {"gpus": 64, "batch": 256, "tries": ("tp=2", "pp=2", "ep=8", *ONE, "swap=none"), "n_best": 2}),
    ("deepseek-v3", "hw-dgx-h100-x8", V3 | {"tries": (*V3_TRY, "system=alltoall", "recompute=full")}),
    ("deepseek-v3", "hw-dgx-h100-x8", V3 | {"tries": (*V3_TRY, "system=deepep", "recompute=full", "overlap=none")}),
    ("deepseek-v3", "hw-dgx-h100-x8", V3 | {"tries": (*V3_TRY, "system=hybrid-ep", "recompute=full", "overlap=none")}),
    ("deepseek-v3", "hw-dgx-b200-x8", V3 | {"precision": "fp8", "tries": ("pp=8", "vpp=2", *ONE, "tp=1", "schedule=dualpipev", "swap=none")}),
    ("deepseek-v3", "hw-dgx-b200-x8", V3 | {"precision": "fp8", "tries": (*V3_TRY, "system=deepep"), "what_if": True}),
    (
        "qwen3-30b",
        "hw-dgx-h100-x2",
        {"gpus": 16, "batch": 64, "check": "tp=2,pp=1,ep=8,dp=8,mbs=1,m=8", "tries": ("tp=2", "pp=1", *ONE, "swap=none")},
    ),
    ("qwen3-30b", "hw-mi300x", {"gpus": 8, "batch": 16, "tries": ("pp=1", *ONE, "swap=none"), "n_best": 2}),
    ("qwen3-30b", "paper-gh200-nvl32", {"gpus": 32, "batch": 64, "tries": ("tp=1", "pp=1", *ONE, "swap=none"), "n_best": 2, "what_if": True}),
]

MODEL: list[Asked] = [
    ("llama3-8b", "", {}),
    ("llama3-70b", "", {"sequence": 8192, "layout": "tp=8,pp=4,vpp=5,dp=2,gbs=64"}),
    ("qwen3-32b", "", {"layout": "tp=4,pp=2,dp=2,fsdp=2,m=4", "precision": "bf16-moments"}),
    ("gpt-oss-120b", "", {"sequence": 4096}),
    ("gpt-oss-20b", "", {"layout": "ep=8,dp=8,m=4"}),
    ("mixtral-8x7b", "", {"layout": "tp=2,pp=2,ep=8,dp=8,m=8", "dispatcher": "deepep"}),
    ("qwen3-235b", "", {"layout": "tp=2,pp=2,ep=32,dp=32,m=16", "recompute": ("moe_act", "layernorm"), "precision": "fp8"}),
    ("qwen3-next-80b", "", {"sequence": 32768}),
    ("deepseek-v3", "", {"layout": "pp=4,vpp=4,ep=64,gpus=256,stages=Et*3|(t*4|)*14t*2mL", "dispatcher": "hybrid-ep"}),
    ("deepseek-v3", "", {"layout": "pp=16,ep=64,dp=128,m=60," + STAGES, "schedule": "1f1b", "recompute": ("full",), "precision": "fp8-moments"}),
    ("deepseek-v3", "", {"layout": "pp=8,vpp=2,ep=32,dp=32,m=32," + STAGES, "schedule": "zbv", "recompute": ("mla_up_proj",), "fixed_gib": 4.0}),
    ("kimi-k2", "", {}),
    ("glm-4.5", "", {}),
    ("pangu-ultra-moe", "", {"layout": "tp=8,pp=16,vpp=2,ep=4,dp=4,m=32,stages=Et|(t*2|)*29t|tmL"}),
]

ADVISE: list[Asked] = [
    ("deepseek-v2-lite", H100, {"tokens": 8, "gpus": 4, "systems": ["deepep"], "options": {"deepep.n_sm": 8}}),
    ("deepseek-v3", B200, {"tokens": 16, "gpus": 4, "systems": ["megamoe"]}),
    ("qwen3-30b", H100, {"tokens": 16, "gpus": 4, "systems": ["deepep-ll", "nccl-ep"], "phase": "decode"}),
]

COLLECTIVE: list[Asked] = [
    ("nccl", H100, {"workload": "all-reduce:64KiB", "gpus": 8}),
    ("nccl", H100, {"workload": "all-reduce:16MiB", "gpus": 8}),
    ("nccl", H100, {"workload": "all-gather:4MiB", "gpus": 8}),
    ("nccl", H100, {"workload": "reduce-scatter:4MiB", "gpus": 8}),
    ("nccl", "hw-dgx-h100-x2", {"workload": "all-reduce:1MiB", "gpus": 16}),
    ("nccl-nvls", H100, {"workload": "all-reduce:8MiB", "gpus": 8}),
    ("nccl-ring", H100, {"workload": "all-gather:1MiB", "gpus": 4}),
    ("nccl-ring", H200, {"workload": "reduce-scatter:1MiB", "gpus": 8}),
    ("nccl-tree", "hw-dgx-h100-x2", {"workload": "all-reduce:256KiB", "gpus": 16}),
    ("nccl-a2a", B200, {"workload": "all-to-all:2MiB", "gpus": 8}),
    ("nvls-one-shot", H100, {"workload": "all-reduce:16KiB", "gpus": 8}),
    ("nvls-two-shot", GB200, {"workload": "all-reduce:4MiB", "gpus": 16}),
    ("allreduce-vllm-one-stage", H100, {"workload": "all-reduce:64KiB", "gpus": 4}),
    ("allreduce-trtllm-two-shot", B200, {"workload": "all-reduce:1MiB", "gpus": 8}),
    ("allreduce-torch-multimem", H100, {"workload": "all-reduce:256KiB", "gpus": 8}),
]

MEASURED: list[Asked] = [("training", "", {}), ("serving", "", {})]
"""Predictions of all packaged measured runs of whole models."""

QUESTIONS: dict[str, list[Asked]] = {
    "serve": SERVE, "step": STEP, "plan": PLAN, "model": MODEL, "advise": ADVISE, "collective": COLLECTIVE, "measured": MEASURED,
}  # fmt: skip

SLOW = {"measured"}
"""Verbs whose questions are left out of the quick selection of tests."""
