"""Arguments of verbs: type, default and meaning of each, once for Python, `help` and the command line. Loads nothing heavy."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

from dysharp.base import AnyPath, ConfigError, show

if TYPE_CHECKING:
    from dysharp.runs.options import Value
    from dysharp.runs.progress import Progress
    from dysharp.specs import Cluster, Model
    from dysharp.workload import Routing, Work

DEFAULT_MODEL = "deepseek-v2-lite"
DEFAULT_CLUSTER = "paper-gh200-nvl32"
MEASURED_CLUSTER = "hw-dgx-h100"


class Argument(NamedTuple):
    """Default and meaning of one argument, and its option (`cli.flags.options`).

    default  ... = an option that must be given
    text     the meaning; `None: X.` at its end is the default in words
    shown    the value of the option in its help: `a|b` are words to complete, `[a|b]` the only words, `A,B,...` a list; "" = no option, or a flag
    span     (least, most); most None = without an end
    flag     the option where it is not the name with "--"
    """

    default: Any
    text: str
    shown: str = ""
    span: tuple[float, float | None] | None = None
    flag: str = ""

    @property
    def words(self) -> list[str]:
        """The values that `shown` lists; [] where it lists none."""
        return self.shown.strip("[]").split("|") if "|" in self.shown and self.shown.islower() else []

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError for a number outside `span`."""
        least, most = self.span or (-inf, None)
        if isinstance(value, int | float) and not least <= value <= (inf if most is None else most):
            raise ConfigError(f"{name}: found {show(value)}, expected {least} {'or more' if most is None else f'to {most}'}")

    def also(self, remark: str) -> "Argument":
        """With a remark of one verb behind the meaning that all verbs share."""
        meaning, none, default = self.text.partition(" None: ")
        return self._replace(text=f"{meaning} {remark}{none}{default}")

    @property
    def meaning(self) -> str:
        """The text for Python, where nothing else shows the words."""
        return f"{self.text} One of {', '.join(self.words)}." if self.words else self.text


ROUTES = (
    "source of expert choices: uniform, normal:STD, powerlaw:ALPHA, lognormal:SIGMA, trace:NAME, a trace (.npz), counts (.csv), or a pattern such "
    "as hot-rank:share=0.2 (`dysharp list routings`)."
)
_DIRECTION = "forward pass, backward pass (alone, on the row layout of a forward pass whose GPUs keep step), or both as one Row."
_OPTIONS = (
    'options of systems: {"deepep.n_sm": 20} in Python, deepep.n_sm=20 in a shell (repeatable); at packet level also of `fabric`. '
    "`dysharp list options` shows names, defaults and ranges."
)
_WINDOW = (
    "packet level, and several NVLink domains: simulate the first `window` tokens of each GPU, and estimate the whole layer. 0: all tokens. "
    "None: all tokens, or as `precision_of_time` says."
)
_PRECISION_OF_TIME = (
    "burst level: simulate the first tokens of each GPU until the layer time is known to so much, such as 0.5% (0.005); all tokens where it is not. "
    "None: all tokens, but 1% for a large layer over several domains in `compare`."
)
_WORKLOAD = (
    "a collective or sub-layer in place of a MoE layer: all-reduce:64MiB, all-gather-v:1MiB,3MiB,... (bytes as nccl-tests counts them), "
    "sub-layer:llama-7b:L1. Arguments of a layer (model, tokens, routing, ...) are then refused."
)
_START = "start time of each rank: fixed:US (the last rank is late), normal:SIGMA_US, rank=R:US,... or a CSV file (rank,start_us)."
_SLOW = "slow ranks: rank=R:FACTOR,..., normal:CV (spread of clocks) or a CSV file (rank,factor). Their GEMMs take FACTOR times as long."
_PRECISIONS = "bf16, fp8, fp8-tensor, mxfp8, fp4, fp4-all, mxfp4, mxfp4-fp8, int4, int4-experts, int4-all"
PRECISION = Argument(
    None,
    f"formats of weights, products, state and rows: {_PRECISIONS}; with another state bf16-moments, bf16-gradients, bf16-whole, fp8-moments, "
    "fp8-primary. Parts: weights (attention, experts, dense, head), products, kv, state, sent, back, such as fp8,products=bf16. "
    "None: as the model's config or checkpoint says.",
    "NAME[,PART=VALUE...]",
)
_PHASE = "set tokens per GPU (128, 4096, 4096), passes and systems, which need kernels for the phase."
GPUS = Argument(None, "GPUs in use. None: all GPUs of the cluster.", "G")
ROUTING = Argument(None, f"{ROUTES} None: routing of the model.", "R")
SEED = Argument(0, "seed of everything that is drawn.", "N", (0, None))
CLUSTER = Argument(DEFAULT_CLUSTER, "name of a packaged cluster, a variant NAME,key=value,... or a TOML file.", "NAME|FILE")
_BALANCED = "eplb[:slots=N,nodes=N,groups=G], exact[:slots=N,least=ROWS,plan=US,prefetch=before|beside|hidden,weights=relay]"
_CHOOSE = "or a JSON or TOML file; :choose=random|local|switch: who chooses among replicas."
PLACEMENT = Argument("auto", f"placement of experts: contiguous, auto, {_BALANCED}, {_CHOOSE}", "P")
SET = Argument(None, _OPTIONS, "SYSTEM.OPTION=VALUE", None, "--set settings")
PROGRESS = Argument(None, "called with a `Step` while the simulation runs.")
WORKLOAD = Argument(None, _WORKLOAD, "W")
SYSTEMS = Argument(None, "systems to simulate.", "A,B,...")
COUNTS_OF = Argument("", "files of counts: model to read from a CSV with several models.", "NAME")
JOBS = Argument(1, "processes that work at once.", "N", (1, 256), "-j --jobs")


class _SharedArgs(TypedDict, total=False):
    """Keyword arguments that `run`, `compare` and `advise` share."""

    cluster: Annotated["AnyPath | Cluster", CLUSTER]
    gpus: Annotated[int | None, GPUS]
    tokens: Annotated[int | None, Argument(None, "tokens per GPU. None: tokens_per_gpu of the model.", "T")]
    layer: Annotated[int | None, Argument(None, "layer of a recording, or draw of a distribution. None: the layer of median imbalance.", "L")]
    routing: Annotated["str | Routing | None", ROUTING]
    placement: Annotated[str, PLACEMENT]
    direction: Annotated[str, Argument("fwd", _DIRECTION, "fwd|bwd|both")]
    seed: Annotated[int, SEED]
    fidelity: Annotated[str, Argument("burst", "level of the simulation.", "burst|packet")]
    options: Annotated["Mapping[str, Value] | None", SET]
    progress: Annotated["Progress | None", PROGRESS]


MODEL = Argument(DEFAULT_MODEL, "name of a packaged model, a TOML file, or a Hugging Face config.json.", "NAME|FILE")


class _ModelArgs(TypedDict, total=False):
    model: Annotated["AnyPath | Model", MODEL]


class RequestArgs(_ModelArgs, _SharedArgs, total=False):
    """Keyword arguments of `run` and `compare`."""

    workload: Annotated["str | Work | None", WORKLOAD]
    window: Annotated[int | None, Argument(None, _WINDOW, "T")]
    precision_of_time: Annotated[str | float | None, Argument(None, _PRECISION_OF_TIME, "P")]
    exact: Annotated[bool, Argument(False, "simulate all tokens, whatever the size of the layer.")]
    start: Annotated[str | None, Argument(None, _START, "S")]
    slow: Annotated[str | None, Argument(None, _SLOW, "S")]


class AdviseArgs(_SharedArgs, total=False):
    """Keyword arguments of `advise`."""

    systems: Annotated[Sequence[str] | None, SYSTEMS.also("None: all with kernels of today.")]
    phase: Annotated[str | None, Argument(None, _PHASE, "decode|prefill|train")]
    precision: Annotated[str | None, PRECISION]


def arguments_of(arguments: type) -> dict[str, Argument]:
    """{name: default and meaning} of a TypedDict of arguments."""
    return {name: kind.__metadata__[0] for name, kind in arguments.__annotations__.items()}
