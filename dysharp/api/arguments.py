"""Keyword arguments of `serve`, `step`, `plan` and `emulate`: `help` prints their texts, options of the command line are made from them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, TypedDict

from dysharp.runs.arguments import CLUSTER, GPUS, PLACEMENT, PROGRESS, ROUTES, ROUTING, SEED, SET, WORKLOAD, Argument

if TYPE_CHECKING:
    from dysharp.api.serving_answer import Slo
    from dysharp.runs.options import Value
    from dysharp.runs.progress import Progress
    from dysharp.serving.layout import ServeLayout

MOST = 1 << 24
Tick = Callable[[int, int, str], None]
SEQUENCE = Argument(4096, "tokens of a sequence.", "S", (1, MOST))
_PRECISIONS = "bf16, fp8, fp8-tensor, mxfp8, fp4, fp4-all, mxfp4, mxfp4-fp8, int4, int4-experts, int4-all"
PRECISION = Argument(
    None,
    f"formats of weights, products, state and rows: {_PRECISIONS}; with another state bf16-moments, bf16-gradients, bf16-whole, fp8-moments, "
    "fp8-primary. Parts: weights (attention, experts, dense, head), products, kv, state, sent, back, such as fp8,products=bf16. "
    "None: as the model's config or checkpoint says.",
    "NAME[,PART=VALUE...]",
)
TENSOR = Argument("", "system of tensor-parallel sub-layers (`dysharp list sub-layers`), such as cais. None: collectives.", "NAME")
_WHAT_IF = "also: no communication, DySHARP, MoE-Hub, larger NVLink domains, faster NICs, a dead GPU."
_MEGATRON = (
    "layout from arguments of Megatron-LM in quotes, a file of them, or a Megatron-Bridge recipe (YAML, TOML, JSON, FILE.py:NAME). "
    "Nothing is executed. Layout, sequence, precision and recompute of the call count first."
)
_TRY = (
    "values of a dimension: tp, pp, vpp, ep, etp, cp, mbs; recompute and swap (none, or modules joined with +), weights (whole, sharded), "
    "schedule (1f1b, zb-h1, zbv, v-half, v-min, dualpipe, dualpipev), overlap (none, pair), "
    "system (alltoall, deepep, hybrid-ep; flat, hierarchical, dedup, in-switch, moe-hub). Repeatable."
)
_VARY = "shapes: layers, hidden, n_experts, topk, expert_hidden, shared_hidden, dense_hidden, heads, kv_heads, vocab, mtp. Repeatable."
_DTYPE = "data type of the payload: int32, float32 or bfloat16. None: int32 for block integer, else float32."
_INJECT = "inject a fault or a hard case; repeatable. `dysharp emulate --inject help` lists the kinds."
_ORDER = "order of events: random, trace (as in the timed engine), oldest, newest, late-delivery, late-completion."


def silent(done: float, total: float, text: str) -> None:
    """Tell nobody."""


class ServeArgs(TypedDict, total=False):
    """Keyword arguments of `serve`."""

    gpus: Annotated[int | None, GPUS]
    isl: Annotated[int, Argument(4096, "tokens of a prompt (mean).", "N")]
    osl: Annotated[int, Argument(1024, "tokens of an answer (mean).", "N")]
    engine: Annotated[str, Argument("vllm", "whose rules put requests into steps.", "vllm|sglang|trtllm")]
    precision: Annotated[str | None, PRECISION]
    kv: Annotated[str | None, Argument(None, "cached keys and values. None: the engine's.", "bf16|fp8")]
    slo: Annotated["str | Slo | None", Argument(None, "limits of the mean times. None: ttft=2s,tpot=50ms.", "ttft=T,tpot=T")]
    users: Annotated[int | None, Argument(None, "also say how many GPUs serve so many users at once.", "N")]
    layouts: Annotated["Iterable[str | ServeLayout] | None", Argument(None, "only these, such as tp=8;dp=8,ep=8;tp=2,dp=4,ep=8.", "A;B;...")]
    ep_system: Annotated[str, Argument("", "EP kernels: deepep or trtllm-a2a. None: the kernels of the machine.", "NAME")]
    tensor: Annotated[str, TENSOR]
    mtp: Annotated[int, Argument(0, "drafts of a step and request by MTP layers.", "N")]
    acceptance: Annotated[float, Argument(0.8, "part of drafts that are accepted if the drafts before were.", "A")]
    routing: Annotated[str | None, Argument(None, f"{ROUTES} Also says what EPLB brings. None: experts by popularity.", "R")]
    what_if: Annotated[bool, Argument(False, _WHAT_IF)]
    systems: Annotated[Iterable[str] | None, Argument(None, "EP systems to simulate at the best point with dispatch.", "A,B,...")]
    merged: Annotated[bool, Argument(False, "also simulate a layer of the best point as a merged Program, beside the closed form.")]
    tick: Annotated[Tick, Argument(silent, "called with layouts done, their number, and a name.")]


class StepArgs(TypedDict, total=False):
    """Keyword arguments of `step`."""

    megatron: Annotated[str | None, Argument(None, _MEGATRON, "ARGS|FILE", None, "--megatron-args")]
    sequence: Annotated[int | None, SEQUENCE._replace(default=None, text="tokens of a sequence. None: of `megatron`, else 4096.", span=(1, None))]
    precision: Annotated[str | None, PRECISION]
    recompute: Annotated[Iterable[str], Argument((), "modules that are computed again, as Megatron names them.", "A,B,...")]
    routing: Annotated[str | None, ROUTING]
    tensor: Annotated[str, TENSOR]
    blocks: Annotated[str, Argument("closed", "MoE blocks: sums of parts (fast), or one Program each on common SMs and links.", "[closed|merged]")]
    seed: Annotated[int, SEED]
    quick: Annotated[bool, Argument(False, "no simulation: MoE layers are closed forms or bounds, and the answer says which.")]
    progress: Annotated["Progress | None", PROGRESS]


class PlanArgs(TypedDict, total=False):
    """Keyword arguments of `plan`."""

    batch: Annotated[int | None, Argument(None, "sequences of a step. None: one per GPU.", "N", (1, MOST))]
    sequence: Annotated[int, SEQUENCE]
    precision: Annotated[str | None, PRECISION]
    spread: Annotated[float | None, Argument(None, "spread of expert loads over their mean. None: 0.256.", "CV", (0, 1))]
    imbalance: Annotated[float | None, Argument(None, "rows of the hottest rank over the mean, in place of `spread`.", "F", (1, 100))]
    tries: Annotated[Iterable[str], Argument((), _TRY, "KEY=V1,V2", None, "--try")]
    vary: Annotated[Iterable[str], Argument((), _VARY, "KEY=V1,V2")]
    n_best: Annotated[int, Argument(10, "layouts to show.", "N", (1, 1000), "--best")]
    check: Annotated[str | None, Argument(None, "judge a layout that runs already: tp=8,pp=16,... with stages= last.", "LAYOUT")]
    what_if: Annotated[bool, Argument(False, "also the best with DySHARP-class switches and with MoE-Hub.")]
    rows: Annotated[int, Argument(0, "rank the best N again by simulated Rows of their experts.", "N", (0, 100))]
    confirmed: Annotated[bool, Argument(False, "replay the schedule of the best, and merge its passes in one Program.", flag="--confirm")]
    sensitive: Annotated[bool, Argument(False, "search again with every constant 20 % lower and higher.", flag="--sensitivity")]
    serve_slo: Annotated[str | None, Argument(None, "also how every shape serves on one domain, such as ttft=2s,tpot=50ms.", "SLO", flag="--serve")]
    folder: Annotated[str | None, Argument(None, "keep costs there: the same command goes on where a killed search was.", "DIR")]
    jobs: Annotated[int, Argument(1, "processes for several shapes.", "N", (1, 256), "-j --jobs")]
    scheduler: Annotated[str, Argument("", "search shapes on the workers of this dask scheduler.", "ADDRESS")]
    quick: Annotated[bool, Argument(False, "a first look: a few layouts by closed forms, no search.")]
    show: Annotated[Callable[[list[str]], None] | None, Argument(None, "called with lines that say the best layout so far.")]
    tick: Annotated[Tick, Argument(silent, "called with what is done (candidates, shapes, Rows, changes), of how much, and a text.")]


class EmulateArgs(TypedDict, total=False):
    """Keyword arguments of `emulate`."""

    workload: Annotated[str | None, WORKLOAD]
    block: Annotated[str, Argument("integer", "MoE block; `dysharp list blocks` shows all.", "B")]
    gpus: Annotated[int, Argument(4, "GPUs of the machine.", "G")]
    cluster: Annotated[str, CLUSTER]
    tokens: Annotated[int, Argument(8, "tokens per GPU.", "T")]
    dtype: Annotated[str | None, Argument(None, _DTYPE, "D")]
    backward: Annotated[bool, Argument(False, "run the backward pass too, and compare the gradients.")]
    inject: Annotated[Iterable[str], Argument((), _INJECT, "KIND")]
    order: Annotated[str, Argument("random", _ORDER, "O")]
    path: Annotated[str, Argument("auto", "move rows or packets; auto: packets while there are few.", "auto|row|packet")]
    seed: Annotated[int, SEED]
    hidden: Annotated[int, Argument(256, "elements of a token.", "H")]
    expert_hidden: Annotated[int, Argument(64, "inner width of an expert.", "I")]
    experts: Annotated[int | None, Argument(None, "experts of the layer. None: 4 per GPU.", "E")]
    topk: Annotated[int | None, Argument(None, "experts per token. None: 4, or all experts where there are fewer.", "K")]
    options: Annotated["Mapping[str, Value] | None", SET]
    placement: Annotated[str, PLACEMENT]
    dump: Annotated[int | None, Argument(None, "also list the packets of this token (packet path).")]
    progress: Annotated["Progress | None", PROGRESS]
