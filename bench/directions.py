"""Questions of direction: one input of a verb changes, and the answer must move the right way.

    python bench/directions.py [--count N] [--seed S] [--verb V] [--key K]

A question draws a base of its verb (`BASES`), changes one key of it (`KINDS`), and compares both answers. A call that is refused is drawn again.
Prints for each verb and key how many were asked, right, wrong, or noted: not moved where a move is sure, or a run that says that it does not model
the key. Wrong ones and notes come with the command lines that repeat them. Exits with 1 for a wrong direction, and for notes above `MOST_NOTES`.

Seed 3511: docs/notebook/2026-11-30-questions-at-35-expected.md, docs/notebook/2026-11-30-questions-at-35-found.md.

Keys of a cluster that no question has are in `NOT_ASKED`. `--systems`: `compare` asks every system that runs there, not those of `BASES`.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dysharp.api.comparison import compare
from dysharp.api.planning import plan
from dysharp.api.serving import serve
from dysharp.api.training import step
from dysharp.base.errors import ConfigError, DysharpError
from dysharp.planning.advice.advise import advise
from dysharp.specs import load_cluster, load_model, load_whole
from dysharp.specs.catalog import model_from_toml, whole_from_toml
from dysharp.specs.cluster import file_values
from dysharp.systems import all_systems

MOST_NOTES = 0.02
DRAWS = 20
"""Bases that are drawn for a question until one is not refused."""
SLACK = {"compare": 0.005, "advise": 0.005, "step": 0.005, "plan": 1e-6, "serve": 1e-6}
"""A move against the sign up to this part is none: so much moves a simulated time with the order in which rows meet in a queue, not a closed form."""
BUFFERS = {"cluster.vc_flits": 0.04, "cluster.n_vcs": 0.04, "cluster.links_per_gpu": 0.04}
"""The same for buffers of a switch, as `dysharp list cluster-keys` says: where Dispatch and Combine overlap, rows of Dispatch fill larger buffers and
wait in front of those of Combine."""
SAME = 1e-9

Inputs = dict[str, Any]
"""Arguments of a verb. Keys of the files of model and cluster, and parts of a layout, stand beside them: model.KEY, cluster.KEY, layout.KEY;
`point.users`: users at whom one layout of `serve` is asked for its TPOT in us, which no command line says."""
Draws = Mapping[str, tuple[Any, ...]]
NODES: Draws = {"cluster": ("hw-dgx-h100-x2", "hw-dgx-b200-x2"), "gpus": (16,)}

BASES: dict[str, Draws] = {
    "compare": {
        "model": ("deepseek-v2-lite", "qwen3-30b", "S-8", "M-8", "moonlight-16b"), "gpus": (8,), "tokens": (64, 128, 256), "seed": (0, 1, 2),
        "cluster": ("hw-dgx-h100", "hw-dgx-b200", "paper-dgx-h100", "paper-gh200-nvl32"), "routing": ("uniform", "lognormal:0.65"),
        "systems": ("deepep", "dysharp", "nvls", "hybrid-ep", "megatron-a2a", "deepep-ll", "comet", "fusion-only", "moe-hub"),
    },
    "advise": {
        "model": ("deepseek-v2-lite", "qwen3-30b", "moonlight-16b"), "cluster": ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200"), "gpus": (8,),
        "systems": ("deepep", "deepep-ll", "hybrid-ep"), "tokens": (64, 128, 256), "routing": ("uniform", "lognormal:0.65"), "seed": (0, 1, 2),
    },
    "step": {
        "model": ("deepseek-v2-lite", "moonlight-16b", "mixtral-8x7b"), "cluster": ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200"),
        "layout.pp": (2,), "layout.ep": (8,), "layout.gpus": (32, 64), "layout.gbs": (256,), "systems": ("deepep", "hybrid-ep"),
        "sequence": (2048, 4096), "routing": ("uniform",), "precision": ("bf16",), "recompute": ("core_attn",), "quick": (True, True, True, False),
    },
    "plan": {
        "model": ("qwen3-30b", "deepseek-v2", "moonlight-16b", "glm-4.5-air"), "cluster": ("hw-dgx-h100-x8", "hw-dgx-b200-x8", "hw-mi355x-x8"),
        "gpus": (64, 128), "batch": (512, 1024), "sequence": (2048, 4096), "precision": ("bf16",),
        "tries": ("tp=1,2 pp=1,2 vpp=1,2 cp=1 mbs=1 ep=8,16 swap=none recompute=none,core_attn",),
    },
    "serve": {
        "model": ("deepseek-v3", "qwen3-30b", "gpt-oss-120b", "qwen3-235b", "llama3-70b", "deepseek-v3.2"), "precision": ("fp8", "bf16"),
        "cluster": ("hw-dgx-h200", "hw-dgx-b200", "hw-mi355x", "hw-dgx-h200-x2"), "isl": (1024, 2048, 4096), "osl": (512, 1024),
        "engine": ("vllm", "sglang", "trtllm"), "slo": ("ttft=4s,tpot=80ms",),
    },
}  # fmt: skip
"""What is drawn for a question of a verb: one value of each."""


class Kind(NamedTuple):
    """One kind of question of some verbs: `key` changes ("*2" scales what the base has), and `metric` moves as `sign` says: > or < (a move is sure),
    >= or <= (none against it), =. `why`: the reason. `on`: what the base has in place of `BASES`, or that by verb."""

    verbs: str
    key: str
    change: Any
    metric: str
    sign: str
    why: str
    on: Mapping[str, Any] = MappingProxyType({})


ACROSS: Mapping[str, Draws] = {
    "compare": {**NODES, "systems": ("deepep", "hybrid-ep")}, "advise": {**NODES, "systems": ("deepep", "hybrid-ep")},
    "step": {"cluster": NODES["cluster"], "layout.ep": (16,)}, "plan": {"tries": ("tp=1 pp=1,2 vpp=1 ep=16 cp=1 mbs=1 swap=none overlap=none",)},
    "serve": {"cluster": ("hw-dgx-h200-x2",), "model": ("deepseek-v3",), "layouts": ("dp=16,ep=16",), "precision": ("fp8",)},
}  # fmt: skip
"""Experts of one group lie in several NVLink domains."""
STRAIGHT: Draws = {"tries": ("tp=1 pp=1,2 vpp=1 ep=16 cp=1 mbs=1 swap=none overlap=none system=flat",)}
GEMMS_DECIDE: Draws = {
    "model": ("deepseek-v2",), "sequence": (4096,), "cluster": ("hw-dgx-h200-x8",), "gpus": (256, 512), "batch": (4096,),
    "tries": ("tp=1 pp=4,8 vpp=1,2 cp=1 mbs=1 ep=8 swap=none recompute=none,core_attn",),
}  # fmt: skip
"""Memory is not short, so FP8's copies ask for no more recomputation, and its casts are few launches beside large products."""
BF16: Draws = {"precision": ("bf16",)}
CACHE: Draws = {"kv": ("bf16",), "layouts": ("tp=8",), "cluster": ("hw-dgx-h200",), "precision": ("fp8",)}
TIGHT = "ttft=4s,tpot=20ms"
USERS: Draws = {
    "point.users": (1, 8, 64, 256), "slo": ("ttft=60s,tpot=2s",), "layouts": ("tp=8",), "kv": ("bf16",),
    "cluster": ("hw-dgx-h200", "hw-dgx-b200", "hw-mi355x"),
}  # fmt: skip
"""One layout at so many users."""
MANY: Draws = {**USERS, "point.users": (32, 64, 256)}
"""Few users' rows are so few that a cast's kernel takes longer than a cut matrix's other half (tests/api/test_directions.py; of qwen3-30b on eight
B200 with eight users, too)."""
FEW: Draws = {**USERS, "point.users": (1, 4, 16)}
TRAINED: Draws = {"layout.mbs": (1, 2, 4), "layout.gbs": (512,), "model": ("deepseek-v2-lite", "moonlight-16b", "mixtral-8x7b", "qwen3-30b")}
LOOKED: Draws = {"tries": ("etp=1",), "batch": (64, 512), "quick": (True,)}
NARROWED: Draws = {"tries": ("tp=1,2 pp=1,2 vpp=1,2 cp=1 mbs=1,2 ep=8,16 swap=none",), "batch": (64, 512), "imbalance": (1.0,)}
EVEN: Draws = {"routing": ("uniform",)}
"""Twice the experts of a drawn popularity balance better: the busiest of 8 GPUs has fewer rows (tests/api/test_directions.py)."""

PAPER: Draws = {"cluster": ("paper-gh200-nvl32", "paper-dgx-h100")}
TABLES = ("reduction_buffer_KiB", "multimemq_entries", "al_tlb_entries", "ts_entries", "or_entries")
NOT_ASKED = {
    "name": "a name", "family": "another kind of machine", "source": "a text", "gpu": "another machine", "max_gpus": "a limit",
    "n_gpus": "the option --gpus", "constants": "every constant has its own tests", "scale_out": "its keys are asked one by one",
}  # fmt: skip
"""Keys of a cluster file without a question of their own."""

KINDS: tuple[Kind, ...] = (
    # the machine
    Kind("compare advise step plan serve", "cluster.link_GBps", "*2", "us", "<=", "rows wait for links"),
    Kind("compare advise step plan serve", "cluster.link_GBps", "*0.5", "us", ">=", "rows wait for links"),
    Kind("compare advise", "cluster.hbm_GBps", "*1.5", "us", "<=", "weights come from memory"),
    Kind("step plan serve", "cluster.hbm_GBps", "*1.5", "us", "<", "weights, activations and states come from memory"),
    Kind("compare advise serve", "cluster.bf16_TFLOPS", "*1.5", "us", "<=", "products"),
    Kind("step plan", "cluster.bf16_TFLOPS", "*1.5", "us", "<", "products"),
    Kind("compare advise serve", "cluster.fp8_TFLOPS", "*1.5", "us", "<=", "products"),
    Kind("compare advise step", "cluster.hbm_GB", "*2", "us", "=", "the size of a memory takes no time"),
    Kind("plan serve", "cluster.hbm_GB", "*2", "us", "<=", "more fits"),
    Kind("compare advise", "cluster.link_latency_ns", "*4", "us", ">=", "every hop takes longer"),
    Kind("compare advise step plan serve", "cluster.scale_out.nic_GBps", "*2", "us", "<=", "rows between domains wait for NICs", ACROSS),
    Kind("compare advise step plan serve", "cluster.scale_out.nic_GBps", "*0.25", "us", ">", "rows between domains wait for NICs", ACROSS),
    Kind("compare advise step plan serve", "cluster.scale_out.latency_us", "*4", "us", ">=", "every message takes longer", ACROSS),
    Kind("compare advise step plan serve", "cluster.scale_out.oversubscription", 8.0, "us", ">=", "rows to other rails pass the spine", ACROSS),
    Kind("plan", "cluster.scale_out.oversubscription", 8.0, "us", ">", "rows to other rails pass the spine", STRAIGHT),
    Kind("compare advise step plan serve", "cluster.scale_out.nics_per_gpu", 2, "us", "<=", "rows between domains wait for NICs", ACROSS),
    Kind("compare advise step plan serve", "cluster.scale_out.nics_per_gpu", 4, "us", "<=", "rows between domains wait for NICs", ACROSS),
    Kind("compare advise", "cluster.hbm_GBps", "*0.5", "us", ">=", "weights come from memory"),
    Kind("compare", "cluster.n_sms", "*2", "us", "<=", "more SMs with their FLOP/s, and memory goes to those that ask"),
    Kind("compare", "cluster.n_sms", "*0.5", "us", ">=", "fewer SMs with their FLOP/s", PAPER),
    Kind("compare", "cluster.n_switches", 1, "us", "=", "every GPU has links to every chip, and packets go by link", PAPER),
    Kind("compare", "cluster.links_per_gpu", "*2", "us", "<=", "twice the buffers, at one rate of all links", PAPER),
    Kind("compare", "cluster.link_latency_ns", "*0.4", "us", "<=", "every hop takes less time", PAPER),
    Kind("compare", "cluster.link_latency_ns", 0, "us", "<=", "no hop takes time", PAPER),
    Kind("compare", "cluster.n_vcs", "*2", "us", "<=", "more rows wait side by side", PAPER),
    Kind("compare", "cluster.n_vcs", "*0.5", "us", ">=", "fewer rows wait side by side", PAPER),
    Kind("compare", "cluster.vc_flits", "*4", "us", "<=", "larger buffers", PAPER),
    Kind("compare", "cluster.vc_flits", 0, "us", "<=", "buffers without a limit", PAPER),
    Kind("compare", "cluster.internal_speedup", "*2", "us", "<=", "a crossbar is no slower", PAPER),
    Kind("compare", "cluster.flit_bytes", "*2", "us", ">=", "a header takes a larger flit", PAPER),
    Kind("compare", "cluster.tile_rows", "*2", "us", "=", "tiles of GEMMs have the choice gemm.tile_rows", PAPER),
    *(Kind("compare", f"cluster.{key}", "*4", "us", "<=", "more fits the table", PAPER) for key in TABLES),
    Kind("compare", "cluster.al_tlb_entries", "*0.25", "us", ">=", "rows are read again", PAPER),
    Kind("compare", "cluster.host_factor", "*2", "us", ">=", "launches take longer", {"cluster": ("hw-dgx-h100", "hw-dgx-b200")}),
    Kind("step plan serve", "cluster.hbm_GBps", "*0.5", "us", ">", "weights, activations and states come from memory"),
    Kind("serve", "cluster.hbm_GBps", "*0.5", "tpot", ">", "weights and the cache come from memory", USERS),
    # the model
    Kind("compare advise step plan serve", "model.topk", "*2", "us", ">", "twice the rows"),
    Kind("compare advise step plan serve", "model.expert_hidden", "*2", "us", ">", "wider experts"),
    Kind("compare advise step plan", "model.hidden", "*2", "us", ">", "wider rows and matrices"),
    Kind("compare advise step", "model.n_experts", "*2", "us", ">=", "as many products with more weights", EVEN),
    Kind("plan serve", "model.n_experts", "*2", "us", ">=", "as many products with more weights"),
    Kind("step plan serve", "model.n_layers", "*0.5", "us", "<", "half the layers"),
    Kind("step", "model.n_experts", "*2", "GiB", ">", "more weights"),
    Kind("step", "model.n_layers", "*0.5", "GiB", "<", "half the weights"),
    # a layer
    Kind("compare advise", "tokens", "*2", "us", ">", "twice the rows"),
    Kind("compare advise", "tokens", "*2", "us/token", "<=", "weights and latencies are shared by more tokens"),
    Kind("compare", "systems", "ideal", "us", "<=", "free communication"),
    Kind("compare advise", "routing", "powerlaw:1.2", "us", ">", "the busiest GPU has more rows", {"routing": ("uniform",), "tokens": (512,)}),
    Kind("compare", "direction", "bwd", "us", ">", "gradients of inputs and weights"),
    Kind("compare", "slow", "rank=1:2", "us", ">", "all wait for the slow rank", {"tokens": (512,)}),
    Kind("compare", "start", "rank=1:50", "us", ">", "all wait for the late rank"),
    Kind("advise", "what-if", "links x2", "us", "<=", "rows wait for links"),
    Kind("advise", "what-if", "software for free", "us", "<=", "the same transfers without software"),
    Kind("advise", "what-if", "communication for free", "us", "<=", "no transfers"),
    Kind("advise", "what-if", "NICs x2", "us", "<=", "rows between domains wait for NICs", ACROSS["advise"]),
    # a step
    Kind("step", "layout.gbs", "*2", "us", ">", "twice the sequences"),
    Kind("step", "layout.gbs", "*2", "us/token", "<", "bubble and optimizer are shared by more sequences"),
    Kind("step", "layout.gpus", "*2", "us", "<", "half the micro-batches"),
    Kind("step", "layout.gpus", "*2", "gpu us/token", ">", "bubble and optimizer are shared by fewer sequences"),
    Kind("step", "sequence", "*2", "us", ">", "twice the tokens"),
    Kind("step", "sequence", "*2", "GiB", ">", "twice the activations"),
    Kind("step", "routing", "lognormal:1.5", "us", ">", "the busiest GPU has more rows"),
    Kind("step", "recompute", "core_attn,moe_act,layernorm", "us", ">", "more is computed again"),
    Kind("step", "recompute", "core_attn,moe_act,layernorm", "GiB", "<", "less is saved"),
    Kind("step", "systems", "ideal", "us", "<=", "free communication"),
    Kind("step", "precision", "fp8", "us", "<", "products in FP8", {"sequence": (4096,), "model": ("mixtral-8x7b",)}),
    Kind("step", "layout.gpus", "*4", "us", "<", "a quarter of the micro-batches", TRAINED),
    Kind("step", "precision", "fp8", "us", "<=", "linears that FP8 slows stay in BF16", {**TRAINED, "quick": (True,)}),
    Kind("step", "precision", "mxfp8", "us", "<=", "as FP8", {**TRAINED, "quick": (True,), "cluster": ("hw-dgx-b200",)}),
    # a plan
    Kind("plan", "batch", "*2", "us", ">", "twice the sequences"),
    Kind("plan", "batch", "*2", "us/token", "<=", "bubble and optimizer are shared by more sequences"),
    Kind("plan", "sequence", "*2", "us", ">", "twice the tokens"),
    Kind("plan", "gpus", "*2", "us", "<", "half the sequences of a GPU"),
    Kind("plan", "gpus", "*2", "gpu us/token", ">=", "bubble and optimizer are shared by fewer sequences; memory keeps no layout out",
         {"cluster": ("hw-dgx-h100-x8,hbm_GB=1000", "hw-dgx-b200-x8,hbm_GB=1000")}),
    Kind("plan", "imbalance", 2.0, "us", ">", "the hottest rank sets the time", {"imbalance": (1.1,)}),
    Kind("plan", "spread", 0.8, "us", ">", "the hottest rank sets the time", {"spread": (0.1,)}),
    Kind("plan", "precision", "fp8", "us", "<", "products in FP8", GEMMS_DECIDE),
    Kind("plan", "tries", "tp=1,2 pp=1,2,4 vpp=1,2 cp=1 mbs=1,2 ep=8,16 swap=none recompute=none,core_attn", "us", "<=", "more to choose from"),
    Kind("plan", "precision", "fp8", "us", "<=", "linears that FP8 slows stay in BF16", NARROWED),
    Kind("plan", "precision", "fp8", "us", "<=", "a look in FP8 has the best of a look in BF16", LOOKED),
    Kind("plan", "gpus", "*4", "us", "<", "a quarter of the sequences of a GPU", {"gpus": (16, 32), "model": ("qwen3-30b", "moonlight-16b")}),
    # serving
    Kind("serve", "isl", "*2", "us", ">", "longer prompts"),
    Kind("serve", "osl", "*2", "us", "<=", "a prompt is shared by more tokens", {"isl": (2048, 4096)}),
    Kind("serve", "slo", "ttft=4s,tpot=160ms", "us", "<=", "a looser limit"),
    Kind("serve", "slo", "ttft=8s,tpot=80ms", "us", "<=", "a looser limit"),
    Kind("serve", "users", "*4", "gpus", ">=", "more users", {"users": (500,)}),
    Kind("serve", "kv", "fp8", "us", "<=", "half the bytes of the cache", {"kv": ("bf16",)}),
    Kind("serve", "kv", "fp8", "requests", ">", "half the bytes of the cache", CACHE),
    Kind("serve", "cluster.hbm_GB", "*2", "requests", ">", "room for the cache", CACHE),
    Kind("serve", "acceptance", 0.9, "us", "<", "more tokens a step", {"acceptance": (0.6,), "mtp": (1,), "model": ("deepseek-v3",)}),
    Kind("serve", "precision", "fp8", "us", "<", "half the bytes", {**BF16, "model": ("qwen3-235b", "llama3-70b")}),
    Kind("serve", "precision", "int4", "us", "<", "a quarter of the bytes", {**BF16, "model": ("qwen3-235b",), "slo": (TIGHT,)}),
    Kind("serve", "precision", "mxfp4", "us", "<", "a quarter of the bytes", {**BF16, "model": ("gpt-oss-120b",), "slo": (TIGHT,)}),
    Kind("serve", "precision", "fp8", "tpot", "<=", "half the bytes", {**BF16, **MANY}),
    Kind("serve", "precision", "int4", "tpot", "<=", "a quarter of the bytes", {**BF16, **FEW}),
    Kind("serve", "precision", "mxfp4", "tpot", "<=", "a quarter of the bytes", {**BF16, **USERS, "model": ("gpt-oss-120b",)}),
    Kind("serve", "precision", "fp4", "tpot", "<=", "half the bytes", {**USERS, "precision": ("fp8",), "cluster": ("hw-dgx-b200",)}),
    Kind("serve", "point.users", "*2", "tpot", ">=", "more rows in a step", USERS),
    Kind("serve", "gpus", "*2", "us", "<=", "every layout also fits twice", {"gpus": (8,), "cluster": ("hw-dgx-h200-x2", "hw-mi355x-x2")}),
    Kind("serve", "cluster.scale_out.nic_GBps", "*0.25", "us disaggregated", ">=", "the cache passes NICs", {"cluster": ("hw-dgx-h200-x2",)}),
    Kind("serve", "cluster.link_GBps", "*0.25", "us disaggregated", ">=", "rows and the cache wait for links"),
)  # fmt: skip


class Asked(NamedTuple):
    """A question with both answers. `verdict`: right, wrong or note."""

    kind: Kind
    verb: str
    before: Inputs
    after: Inputs
    answers: tuple[float, float]
    verdict: str

    def lines(self) -> list[str]:
        """The question, its answers, and the command lines that repeat them."""
        was, now = self.answers
        _, key, change, metric, sign, why, _ = self.kind
        text = f"{self.verb} {key} {change}: {metric} {was:.6g} -> {now:.6g}, expected {sign} ({why})"
        commands = [command_of(self.verb, one) for one in (self.before, self.after)]
        return [f"{self.verdict}: {text}", *(f"    {command}" for command in dict.fromkeys(commands))]


def at(inputs: Inputs, part: str) -> Inputs:
    """The keys `part.KEY` of a question by KEY."""
    return {key.removeprefix(f"{part}."): value for key, value in inputs.items() if key.startswith(f"{part}.")}


def plain(inputs: Inputs, *without: str) -> Inputs:
    """The arguments that a verb takes as they are."""
    return {key: value for key, value in inputs.items() if "." not in key and key not in without}


def cluster_of(inputs: Inputs) -> str:
    """The cluster as the verbs read it."""
    return ",".join((inputs["cluster"], *(f"{key}={value:g}" for key, value in at(inputs, "cluster").items())))


def toml_of(inputs: Inputs) -> str:
    """The file of a changed model; "" where nothing of it is changed."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in at(inputs, "model").items()]
    return "\n".join([f'base = "{inputs["model"]}"', 'name = "changed"', *lines]) if lines else ""


def layout_text(inputs: Inputs) -> str:
    """A layout of `step`."""
    return ",".join(f"{key}={value}" for key, value in at(inputs, "layout").items())


def vary_of(inputs: Inputs) -> list[str]:
    """A changed model, as `plan` varies shapes."""
    return [f"{key.removeprefix('n_') if key == 'n_layers' else key}={value}" for key, value in at(inputs, "model").items()]


def command_of(verb: str, inputs: Inputs) -> str:
    """The command line of a question."""
    text, verb_model = toml_of(inputs), verb != "plan"
    model = "changed.toml" if text and verb_model else inputs.get("model", "")
    words = ["dysharp", verb, *(["--model", model] if verb == "compare" and model else [model] if model else []), "--cluster", cluster_of(inputs)]
    words += ["--layout", layout_text(inputs)] if verb == "step" else []
    words += [word for one in vary_of(inputs) for word in ("--vary", one)] if not verb_model else []
    for key, value in plain(inputs, "model", "cluster", "what-if").items():
        words += [word for one in value.split() for word in ("--try", one)] if key == "tries" else _option(key, value)
    write = f"printf '%s\\n' {' '.join(shlex.quote(line) for line in text.splitlines())} > changed.toml && " if text and verb_model else ""
    return write + shlex.join(words)


def _option(key: str, value: Any) -> list[str]:
    return [f"--{key}"] * value if isinstance(value, bool) else [f"--{key}", f"{value}"]


def _layer(inputs: Inputs) -> dict[str, Any]:
    """Arguments of `compare` and `advise`."""
    text = toml_of(inputs)
    own = {"systems": inputs["systems"].split(","), "cluster": cluster_of(inputs)} if "systems" in inputs else {"cluster": cluster_of(inputs)}
    return plain(inputs, "what-if") | own | ({"model": model_from_toml(text, "changed.toml")} if text else {})


def _compare(inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    found = compare(**_layer(inputs))
    us = found.rows[0].layer_us
    return {"us": us, "us/token": us / inputs.get("tokens", 1)}, [*found.header]


def _advise(inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    found = advise(**_layer(inputs))
    best = found.best
    tried = {f"us, {one.change}": one.predicted.time_us for one in found.what_if}
    return {"us": best.time_us, "us/token": best.time_us / best.tokens, **tried}, [*found.header, *best.warnings]


def _step(inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    text = toml_of(inputs)
    model = whole_from_toml(text, "changed.toml") if text else inputs["model"]
    own = {name: tuple(inputs[name].split(",")) for name in ("systems", "recompute")}
    found = step(model, cluster_of(inputs), layout_text(inputs), **plain(inputs, "model", "cluster", "gpus") | own)
    best = found.best
    per_gpu, gib = 1e6 / best.tokens_per_s_gpu, found.memory.reserved(found.memory.peak) / 2**30
    return {"us": best.step_us, "us/token": per_gpu / found.layout.gpus, "gpu us/token": per_gpu, "GiB": gib}, [*found.header]


def _plan(inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    own = {"tries": inputs["tries"].split(), "vary": vary_of(inputs), "n_best": 1}
    found = plan(inputs["model"], inputs["gpus"], cluster_of(inputs), **plain(inputs, "model", "cluster", "gpus") | own)
    us = found.plan.first.found.best[0].step_us
    tokens = inputs["batch"] * inputs["sequence"]
    return {"us": us, "us/token": us / tokens, "gpu us/token": us * inputs["gpus"] / tokens}, [*found.header]


def _serve(inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    text = toml_of(inputs)
    own = {"layouts": inputs["layouts"].split(";")} if "layouts" in inputs else {}
    model = whole_from_toml(text, "changed.toml") if text else inputs["model"]
    found = serve(model, cluster_of(inputs), **plain(inputs, "model", "cluster") | own)
    disaggregated = {"us disaggregated": 1e6 / found.disaggregated.tokens_per_gpu} if found.disaggregated else {}
    if not found.best:
        return disaggregated, [*found.header]
    gpus = {} if found.gpus_for_users is None else {"gpus": found.gpus_for_users}
    users, first = inputs.get("point.users"), found.points[0]
    tpot = {"tpot": first.at(users).served.tpot} if users and users <= first.memory.requests else {}
    most = max(point.tokens_per_gpu for point in found.best)  # the layout that is named first has the smallest replica within 1 % of it
    return {"us": 1e6 / most, "requests": first.memory.requests, **disaggregated, **gpus, **tpot}, [*found.header]


VERBS: dict[str, Callable[[Inputs], tuple[dict[str, float], list[str]]]] = {
    "compare": _compare, "advise": _advise, "step": _step, "plan": _plan, "serve": _serve,
}  # fmt: skip
"""({metric: value}, what the answer rests on) of every verb. A metric that an answer has not is refused."""


@functools.cache
def _answer(verb: str, inputs: tuple[tuple[str, Any], ...]) -> tuple[dict[str, float], list[str]] | None:
    try:
        return VERBS[verb](dict(inputs))
    except DysharpError:
        return None


def answer_of(verb: str, inputs: Inputs) -> tuple[dict[str, float], list[str]] | None:
    """The answer of a verb, once for the same inputs; None: refused."""
    return _answer(verb, tuple(inputs.items()))


def base_value(verb: str, inputs: Inputs, key: str) -> Any:
    """What the base has."""
    part, _, name = key.partition(".")
    if key in inputs or part not in ("cluster", "model"):
        return inputs[key]
    if part == "model":
        whole = load_whole(inputs["model"]) if verb in ("step", "plan", "serve") else None
        if whole and not whole.layer:
            raise ConfigError(f"model: found {inputs['model']} without experts, expected a model with {name}")
        layer = whole.layer if whole else load_model(inputs["model"])
        return whole.n_layers if whole and verb == "plan" and name == "n_layers" else getattr(layer, name)
    cluster = load_cluster(inputs["cluster"])
    return getattr(cluster.scale_out, name.partition(".")[2]) if name.startswith("scale_out.") else file_values(cluster)[name]


def changed(verb: str, inputs: Inputs, kind: Kind) -> Inputs:
    """The inputs after the change."""
    if not (isinstance(kind.change, str) and kind.change.startswith("*")):
        return inputs | {kind.key: kind.change}
    value = base_value(verb, inputs, kind.key)
    return inputs | {kind.key: type(value)(value * float(kind.change[1:]))}


def verdict_of(verb: str, kind: Kind, was: float, now: float, said: list[str]) -> str:
    """Whether the answer moved as it must."""
    with_it = (1 if ">" in kind.sign else -1) * (now / was - 1)
    if abs(with_it) > SAME if kind.sign == "=" else with_it < -BUFFERS.get(kind.key, SLACK[verb]):
        return "wrong"
    leaf = kind.key.rpartition(".")[2]
    unmodelled = any(leaf in line and ("no effect" in line or "not model" in line) for line in said)
    return "note" if (unmodelled and kind.sign != "=") or (with_it < SAME and "=" not in kind.sign) else "right"


def ask(verb: str, kind: Kind, draw: random.Random) -> Asked | None:
    """One question; None where every base was refused."""
    for _ in range(DRAWS):
        inputs = {key: draw.choice(values) for key, values in {**BASES[verb], **kind.on.get(verb, kind.on)}.items()}
        try:
            after = inputs if kind.key == "what-if" else changed(verb, inputs, kind)
        except ConfigError:
            continue
        metric = f"{kind.metric}, {kind.change}" if kind.key == "what-if" else kind.metric
        first, second = answer_of(verb, inputs), answer_of(verb, after)
        if first and second and kind.metric in first[0] and metric in second[0]:
            was, now = first[0][kind.metric], second[0][metric]
            return Asked(kind, verb, inputs, after, (was, now), verdict_of(verb, kind, was, now, second[1]))
    return None


def questions(count: int, seed: int, verbs: tuple[str, ...], key: str = "") -> list[tuple[str, Kind]]:
    """(verb, kind) of every question: all kinds in turn, in a drawn order."""
    kinds = [(verb, kind) for kind in KINDS for verb in kind.verbs.split() if verb in verbs and key in kind.key]
    random.Random(seed).shuffle(kinds)
    return [kinds[i % len(kinds)] for i in range(count)]


def main() -> None:
    """Ask, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verb", choices=[*VERBS])
    parser.add_argument("--key", default="", help="only keys with this text")
    parser.add_argument("--systems", action="store_true", help="compare every system")
    args = parser.parse_args()
    if args.systems:
        BASES["compare"] = {**BASES["compare"], "systems": tuple(all_systems())}
    begin = time.monotonic()
    seen: Counter[tuple[str, str, str]] = Counter()
    spent = dict.fromkeys(VERBS, 0.0)
    for number, (verb, kind) in enumerate(questions(args.count, args.seed, (args.verb,) if args.verb else (*VERBS,), args.key)):
        start = time.monotonic()
        asked = ask(verb, kind, random.Random(f"{args.seed} {number}"))
        spent[verb] += time.monotonic() - start
        name = f"{kind.key} {kind.change} ({kind.metric} {kind.sign})"
        seen[verb, name, asked.verdict if asked else "refused"] += 1
        if asked and asked.verdict != "right":
            print("\n".join(asked.lines()), flush=True)
    print(f"\n{'verb':<9}{'key':<62}{'asked':>6}{'right':>6}{'wrong':>6}{'notes':>6}")
    for verb, name in sorted({one[:2] for one in seen}):
        right, wrong, notes, refused = (seen[verb, name, one] for one in ("right", "wrong", "note", "refused"))
        print(f"{verb:<9}{name:<62}{right + wrong + notes:>6}{right:>6}{wrong:>6}{notes:>6}" + (f"  {refused} refused" if refused else ""))
    total = Counter(dict.fromkeys(("right", "wrong", "note", "refused"), 0))
    for (_, _, word), n in seen.items():
        total[word] += n
    count = total["right"] + total["wrong"] + total["note"]
    times = ", ".join(f"{verb} {s:.0f} s" for verb, s in spent.items())
    print(f"{count} asked: {total['right']} right, {total['wrong']} wrong, {total['note']} notes ({total['note'] / max(1, count):.1%}); "
          f"{total['refused']} refused; {time.monotonic() - begin:.0f} s ({times})")  # fmt: skip
    sys.exit(total["wrong"] > 0 or total["note"] > MOST_NOTES * count)


if __name__ == "__main__":
    main()
