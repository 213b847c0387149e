"""Keyword arguments of verbs: `help` prints their texts, options of the command line are made from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from dysharp.base import AnyPath, ConfigError, frozen
from dysharp.runs.arguments import CLUSTER, GPUS, JOBS, PLACEMENT, PRECISION, PROGRESS, ROUTES, ROUTING, SEED, SET, SYSTEMS, WORKLOAD, Argument

if TYPE_CHECKING:
    from dysharp.model import Layout
    from dysharp.runs import ClusterSource, Progress, Value
    from dysharp.serving.layout import ServeLayout
    from dysharp.specs.fitted import Fitted

MOST = 1 << 24
Tick = Callable[[int, int, str], None]
SEQUENCE = Argument(4096, "tokens of a sequence.", "S", (1, MOST))
_DEGREES = (
    "layout of a training step: tp=, pp=, vpp=, ep=, etp=, cp=, dp= or gpus=, mbs= (sequences of a micro-batch), gbs= or m= (micro-batches), "
    "stages= (Megatron's layout string, such as Et|(tt|)*30mL)."
)
LAYOUT = Argument("", _DEGREES, "KEY=N,...")
SCHEDULE = Argument(None, "pipeline schedule. None: 1f1b; interleaved with vpp above 1.", "NAME")
TENSOR = Argument("", "system of tensor-parallel sub-layers (`dysharp list sub-layers`), such as cais. None: collectives.", "NAME")
_WHAT_IF = "also the best without communication, with DySHARP, MoE-Hub, larger NVLink domains, faster NICs, a dead GPU."
_MEGATRON = (
    "layout from arguments of Megatron-LM in quotes, a file of them, or a Megatron-Bridge recipe (YAML, TOML, JSON, FILE.py:NAME). "
    "Nothing is executed. Layout, sequence, precision and recompute of the call count first."
)
RECOMPUTE = Argument((), "modules that are computed again, as Megatron names them: mla_up_proj, moe_act, full, ...", "A,B,...")
_TRY = (
    "values to try for a dimension: tp, pp, vpp, ep, etp, cp, mbs; recompute and offload (none, or modules joined with +), weights (whole, sharded), "
    "schedule (1f1b, zb-h1, zbv, v-half, v-min, dualpipe, dualpipev), overlap (none, pair), "
    "system (alltoall, deepep, hybrid-ep; flat, hierarchical, dedup, in-switch, moe-hub). Repeatable."
)
SCHEDULER = Argument("", "work on the workers of this dask scheduler, tcp://HOST:PORT or FILE.json.", "ADDRESS")
_VARY = "shapes to compare: layers, hidden, n_experts, topk, expert_hidden, shared_hidden, dense_hidden, heads, kv_heads, vocab, mtp. Repeatable."
_REQUESTS = (
    "also replay requests one by one: a trace (Mooncake, Azure, AIPerf, Weka, ServeGen, lengths; behind it ,n= ,rate= ,users= ,speed=), or drawn "
    "ones, such as rate=4,isl=2000 or users=64,turns=5,pause=10,shared=1000. Layouts are searched for their mean lengths."
)
_LAUNCH = (
    "answer for the server that this line starts: vllm serve, sglang.launch_server or trtllm-serve with its flags, in quotes, or a file of it. "
    "Nothing is executed. An option that contradicts the line is refused."
)
_DTYPE = "data type of the payload: int32, float32 or bfloat16. None: int32 for block integer, else float32."
_INJECT = "inject a fault or a hard case; repeatable. `dysharp emulate --inject help` lists the kinds."
_ORDER = "order of events: random, trace (as in the timed engine), oldest, newest, late-delivery, late-completion."

_CURVE = "recorded configuration such as xbar8_v4b8_p9_int2; with --compare also a pattern: 'xbar8_*'."
_PATTERN = (
    "traffic pattern: uniform, transpose, bitcomp, bitrev, shuffle, tornado, neighbor, hotspot:W,... (weights of the first terminals, "
    "1 for all other terminals) or permutation:T,... (one target per terminal). None: uniform."
)
_DELAYS = (
    "delays in cycles, of links (terminal=, link=) and router stages (routing=, vc=, switch=, traversal=, credit=). "
    "None: 1 each; routing and credit 0."
)
_HOLD_OUT = "also refit with whole shapes, GPUs or numbers of nodes held out; repeatable."
_CONSTANTS = "judge constants of your own, as --refit writes them (TOML), not the packaged ones."
_JUDGED = "judge the constants of a cluster file that calibrate wrote, on the rows of its GPU; with [scale_out] also on rows between nodes."
_TOKENIZER = "None: the tokenizer of the folder; without one the model reads the bytes of the text, and the Recording's `origin` says so."


def _silent(done: float, total: float, text: str) -> None:
    """Tell nobody."""


@frozen
class Slo:
    """Limits of `serve` in milliseconds: `Slo(ttft=2000, tpot=50)`, or text "ttft=2s,tpot=50ms". They hold for mean times."""

    ttft: float = 2000.0
    tpot: float = 50.0

    def __post_init__(self) -> None:
        if not all(0 < limit < float("inf") for limit in (self.ttft, self.tpot)):
            raise ConfigError(f"slo: found ttft {self.ttft} and tpot {self.tpot}, expected milliseconds above 0")


class ServeArgs(TypedDict, total=False):
    """Keyword arguments of `serve`."""

    gpus: Annotated[int | None, GPUS]
    isl: Annotated[int, Argument(4096, "input sequence length: tokens of a prompt (mean).", "N", (1, MOST))]
    osl: Annotated[int, Argument(1024, "output sequence length: tokens that follow (mean).", "N", (2, MOST))]
    launch: Annotated[str | None, Argument(None, _LAUNCH, "LINE|@FILE")]
    engine: Annotated[str | None, Argument(None, "engine whose rules put requests into steps. None: vllm.", "vllm|sglang|trtllm")]
    precision: Annotated[str | None, PRECISION]
    kv: Annotated[str | None, Argument(None, "format of cached keys and values. None: the engine's.", "bf16|fp8")]
    slo: Annotated[str | Slo | None, Argument(None, "limits of the mean times. None: ttft=2s,tpot=50ms.", "ttft=T,tpot=T")]
    users: Annotated[int | None, Argument(None, "also say how many GPUs serve so many users at once.", "N", (1, MOST))]
    layouts: Annotated["Iterable[str | ServeLayout] | None", Argument(None, "only these layouts, such as tp=8;dp=8,ep=8;tp=2,dp=4,ep=8.", "A;B;...")]
    ep_system: Annotated[str, Argument("", "EP kernels: deepep (-ll, -normal), trtllm-a2a, allgather. None: those of the machine.", "NAME")]
    tensor: Annotated[str, TENSOR]
    mtp: Annotated[int | None, Argument(None, "tokens that MTP layers draft per request and step. None: 0.", "N", (0, 8))]
    acceptance: Annotated[float, Argument(0.8, "part of draft tokens that are accepted if those before were.", "A")]
    routing: Annotated[str | None, Argument(None, f"{ROUTES} Also says what EPLB brings. None: experts by popularity.", "R")]
    what_if: Annotated[bool, Argument(False, _WHAT_IF)]
    systems: Annotated[Iterable[str] | None, SYSTEMS.also("Only EP systems, at the best point with dispatch.")]
    merged: Annotated[bool, Argument(False, "also simulate a layer of the best point as a merged Program, beside the closed form.")]
    requests: Annotated[str | None, Argument(None, _REQUESTS, "FILE|KEY=V,...")]
    router: Annotated[str, Argument("least-load", "who takes a replayed request.", "round-robin|least-load|prefix")]
    tiers: Annotated[str | None, Argument(None, "memory of a GPU for evicted blocks of prefixes, and its rate: host=200@50.", "NAME=GB@GBps")]
    pools: Annotated[str | None, Argument(None, "replay on these prefill and decode workers, such as 2:tp=4;1:dp=8,ep=8.", "N:LAYOUT;N:LAYOUT")]
    fail: Annotated[str | None, Argument(None, "replicas that stop during the replay, such as 0@60+30 (at 60 s for 30 s).", "REPLICA@S[+S]")]
    price: Annotated[float, Argument(0.0, "dollars of a GPU hour, for the price of a million tokens.", "USD", (0, 10**6))]
    tick: Annotated[Tick, Argument(_silent, "called with layouts done, their number, and a name.")]


class StepArgs(TypedDict, total=False):
    """Keyword arguments of `step`."""

    megatron: Annotated[str | None, Argument(None, _MEGATRON, "ARGS|FILE", None, "--megatron-args")]
    sequence: Annotated[int | None, SEQUENCE._replace(default=None, text="tokens of a sequence. None: of `megatron`, else 4096.")]
    precision: Annotated[str | None, PRECISION]
    recompute: Annotated[Iterable[str], RECOMPUTE]
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
    folder: Annotated[str | None, Argument(None, "folder that keeps costs: the same command goes on where a killed search was.", "DIR")]
    jobs: Annotated[int, JOBS.also("A process takes whole shapes.")]
    scheduler: Annotated[str, SCHEDULER]
    quick: Annotated[bool, Argument(False, "a first look: a few layouts by closed forms, no search.")]
    show: Annotated[Callable[[list[str]], None] | None, Argument(None, "called with lines that say the best layout so far.")]
    tick: Annotated[Tick, Argument(_silent, "called with what is done (candidates, shapes, Rows, changes), of how much, and a text.")]


class EmulateArgs(TypedDict, total=False):
    """Keyword arguments of `emulate`."""

    workload: Annotated[str | None, WORKLOAD]
    block: Annotated[str, Argument("integer", "MoE block; `dysharp list blocks` shows all.", "B")]
    gpus: Annotated[int, Argument(4, "GPUs of the machine.", "G", (1, 1024))]
    cluster: Annotated[str, CLUSTER]
    tokens: Annotated[int, Argument(8, "tokens per GPU.", "T", (1, 1 << 20))]
    dtype: Annotated[str | None, Argument(None, _DTYPE, "D")]
    backward: Annotated[bool, Argument(False, "run the backward pass too, and compare the gradients.")]
    inject: Annotated[Iterable[str], Argument((), _INJECT, "KIND")]
    order: Annotated[str, Argument("random", _ORDER, "O")]
    path: Annotated[str, Argument("auto", "move rows or packets; auto: packets while there are few.", "auto|row|packet")]
    seed: Annotated[int, SEED]
    hidden: Annotated[int, Argument(256, "elements of a token.", "H", (1, 1 << 16))]
    expert_hidden: Annotated[int, Argument(64, "inner width of an expert.", "I", (1, 1 << 20))]
    experts: Annotated[int | None, Argument(None, "experts of the layer. None: 4 per GPU.", "E", (1, 1 << 16))]
    topk: Annotated[int | None, Argument(None, "experts per token. None: 4, or all experts where there are fewer.", "K", (1, 1 << 15))]
    options: Annotated["Mapping[str, Value] | None", SET]
    placement: Annotated[str, PLACEMENT]
    dump: Annotated[int | None, Argument(None, "also list the packets of this token (packet path).")]
    progress: Annotated["Progress | None", PROGRESS]


class DescribeArgs(TypedDict, total=False):
    """Keyword arguments of `describe`."""

    sequence: Annotated[int, SEQUENCE]
    layout: Annotated["str | Layout | None", LAYOUT.also("With it, also the memory of the step on every pipeline rank.")._replace(default=None)]
    schedule: Annotated[str, SCHEDULE._replace(default="")]
    precision: Annotated[str, PRECISION._replace(default="bf16")]
    recompute: Annotated[Sequence[str], RECOMPUTE]
    dispatcher: Annotated[str, Argument("alltoall", "library whose expert buffers count.", "alltoall|deepep|hybrid-ep")]
    fixed_gib: Annotated[float, Argument(0.0, "other memory outside the allocator, such as NCCL's.", "G", (0, 10**9))]
    gpu: Annotated[str, Argument("", "refuse a layout that does not fit the memory of this GPU, such as h100-sxm.", "NAME")]
    cluster: Annotated["ClusterSource | None", Argument(None, "as `gpu`, and refuse groups beyond its NVLink domains.", "NAME|FILE")]


class SettingArgs(TypedDict, total=False):
    """Keyword arguments of `network` that say which network and traffic."""

    cluster: Annotated[str | None, Argument(None, "simulate one switch of this cluster under 128 B stores.", "NAME|FILE")]
    curve: Annotated[str | None, Argument(None, _CURVE, "NAME")]
    topology: Annotated[str | None, Argument(None, "shape: fly (k-ary n-fly; n = 1: one crossbar), fattree (k-ary n-tree) or ring. None: fly.", "T")]
    k: Annotated[int | None, Argument(None, "downward ports of a router, or routers of a ring. None: 8.", "K")]
    n: Annotated[int | None, Argument(None, "stages of a fly, or levels of a fattree. None: 1.", "N")]
    vcs: Annotated[int | None, Argument(None, "virtual channels per input port. None: 4.", "V")]
    buffer: Annotated[int | None, Argument(None, "buffer of one virtual channel, in flits. None: 8.", "B")]
    packet_flits: Annotated[int | None, Argument(None, "flits of a packet. None: 1; with `cluster` 9: a 128 B store.", "P")]
    pattern: Annotated[str | None, Argument(None, _PATTERN, "P")]
    burst: Annotated[str | None, Argument(None, "bursty sources: mean cycles in the two states. The mean load does not change.", "ON:OFF")]
    speedup: Annotated[int | None, Argument(None, "router cycles per link cycle. None: 1.", "S")]
    lanes: Annotated[int | None, Argument(None, "lanes per port, into and out of the crossbar. None: 1.", "L")]
    allocator: Annotated[str | None, Argument(None, "allocators: separable_input_first or islip. None: separable_input_first.", "A")]
    speculative: Annotated[bool, Argument(False, "allocate virtual channel and switch in one cycle.")]
    hold_switch: Annotated[bool, Argument(False, "a packet keeps the switch until its tail has passed.")]
    delays: Annotated[str | None, Argument(None, _DELAYS, "NAME=C,...")]


class NetworkArgs(SettingArgs, total=False):
    """Keyword arguments of `network`."""

    saturation: Annotated[bool, Argument(False, "also find the largest load that the network carries, by bisection.")]
    seed: Annotated[int, SEED._replace(default=1)]
    period: Annotated[int, Argument(6000, "cycles of a sample period.", "C", (1, 1_000_000))]
    warm_up: Annotated[int, Argument(3, "periods to discard; up to 4 periods after them are measured.", "N", (1, 10_000))]
    max_periods: Annotated[int | None, Argument(None, "periods to simulate at most, `warm_up` included. None: `warm_up` + 4.")]
    progress: Annotated["Progress | None", PROGRESS]


class ValidateArgs(TypedDict, total=False):
    """Keyword arguments of `validate`."""

    hold_out: Annotated[Sequence[str], Argument((), _HOLD_OUT, "shape|gpu|nodes")]
    constants: Annotated["Mapping[str, Fitted] | AnyPath | None", Argument(None, _CONSTANTS, "FILE")]
    cluster: Annotated["ClusterSource | None", Argument(None, _JUDGED, "FILE")]
    jobs: Annotated[int, JOBS]
    progress: Annotated["Progress | None", PROGRESS]


SAID = Argument((), "what a log does not say, such as hardware=H100, model=qwen3-30b or tp=8.", "COLUMN=VALUE", flag="--set")


class CalibrateArgs(TypedDict, total=False):
    """Keyword arguments of `calibrate`."""

    base: Annotated[str, Argument("hw-dgx-h100", "packaged hw-* cluster that the file extends.", "NAME")]
    name: Annotated[str | None, Argument(None, "name of the cluster. None: the name of the file.", "NAME")]
    said: Annotated[Sequence[str], SAID]
    begun: Annotated[Callable[[], None] | None, Argument(None, "called when all input has been read and the fit begins.")]


_OTHER = "links=FACTOR, or system=NAME (EP systems of `dysharp plan`, dysharp, in a domain deepep-v2 and alike)"


class ExplainArgs(TypedDict, total=False):
    """Keyword arguments of `explain`."""

    model: Annotated[str | None, Argument(None, "model of the run, for kernels whose shapes the profile does not say.", "MODEL|FILE")]
    layout: Annotated[str, LAYOUT]
    batch: Annotated[float, Argument(0.0, "requests of a decode step (of an attention group) where the run serves. 0: it trains.", "N", (0, MOST))]
    sequence: Annotated[int | None, SEQUENCE._replace(default=None, text="tokens of a sequence, or in the cache. None: 4096; 1024 with a batch.")]
    precision: Annotated[str | None, PRECISION]
    cluster: Annotated[str | None, CLUSTER._replace(default=None, text="cluster of the run. None: the smallest with its GPU.")]
    ep_library: Annotated[str, Argument("", "EP library that was asked for: deepep or nccl. A remark says if another one ran.", "NAME")]
    what_if: Annotated[Sequence[str], Argument((), f"rebuild the step with one change: graph, balanced, {_OTHER}. Repeatable.", "CHANGE")]


class CaptureArgs(TypedDict, total=False):
    """Keyword arguments of `capture`."""

    tokenizer: Annotated[Any, Argument(None, _TOKENIZER)]
    layers: Annotated[Sequence[int] | None, Argument(None, "layers to record. None: all layers with experts.", "L,L,...")]
    max_tokens: Annotated[int, Argument(8192, "stop after N tokens.", "N")]
    sequence: Annotated[int | None, Argument(None, "tokens of one sequence; they attend to each other. None: 512, or the model's limit.", "N")]
    progress: Annotated["Progress | None", PROGRESS]


class HardwareArgs(TypedDict, total=False):
    """Keyword arguments of `hardware`."""

    seed: Annotated[int, SEED]
    out: Annotated[str | None, Argument(None, "write the block as Verilog.", "FILE.v", flag="-o --out")]
    sequences: Annotated[int | None, Argument(None, "compare block and model in N random sequences, cycle by cycle.", "N", (1, None), "--check")]
    area: Annotated[bool, Argument(False, "synthesise: gates, area in 12 and 7 nm, longest path.")]
    liberty: Annotated[str | None, Argument(None, "map the logic to the cells of this library, too.", "FILE.lib")]
    testbench: Annotated[str | None, Argument(None, "write the block at small sizes with a testbench that checks itself.", "FILE.v")]
    prove: Annotated[bool, Argument(False, "prove what the block promises, for all inputs on small sizes.")]
    trace: Annotated[tuple[str, str] | None, Argument(None, "(model, routing) of a run at packet level, one port of which goes through the block.")]
