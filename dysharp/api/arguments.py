"""Keyword arguments of verbs: `help` prints their texts, options of the command line are made from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from dysharp.base import AnyPath, ConfigError, frozen
from dysharp.runs.arguments import Argument

if TYPE_CHECKING:
    from dysharp.model import Layout
    from dysharp.runs import ClusterSource, Progress, Value
    from dysharp.serving.layout import ServeLayout
    from dysharp.specs.fitted import Fitted

Tick = Callable[[int, int, str], None]


def _silent(done: float, total: float, text: str) -> None:
    """Tell nobody."""


@frozen
class Slo:
    """Limits of `serve` in milliseconds: `Slo(ttft=2000, tpot=50)`, or text "ttft=2s,tpot=50ms". They hold for mean times."""

    ttft: float = 2000.0
    tpot: float = 50.0

    def __post_init__(self) -> None:
        from dysharp.specs.arguments import fitting  # `--help` shows the name of this class alone

        if not all(0 < fitting("slo", limit, float) < float("inf") for limit in (self.ttft, self.tpot)):
            raise ConfigError(f"slo: found ttft {self.ttft} and tpot {self.tpot}, expected milliseconds above 0")


class ServeArgs(TypedDict, total=False):
    """Keyword arguments of `serve`."""

    gpus: int | None
    isl: int
    osl: int
    launch: str | None
    engine: str | None
    precision: str | None
    kv: str | None
    slo: str | Slo | None
    users: int | None
    layouts: "Iterable[str | ServeLayout] | None"
    ep_system: str
    tensor: str
    mtp: int | None
    acceptance: float
    routing: str | None
    what_if: bool
    systems: Iterable[str] | None
    merged: bool
    requests: str | None
    router: str
    tiers: str | None
    pools: str | None
    fail: str | None
    price: float
    tick: Annotated[Tick, Argument(_silent, "called with layouts done, their number, and a name.")]


class StepArgs(TypedDict, total=False):
    """Keyword arguments of `step`."""

    megatron: str | None
    sequence: int | None
    precision: str | None
    recompute: Iterable[str]
    routing: str | None
    tensor: str
    blocks: str
    seed: int
    quick: bool
    progress: "Progress | None"


class PlanArgs(TypedDict, total=False):
    """Keyword arguments of `plan`."""

    batch: int | None
    sequence: int
    precision: str | None
    spread: float | None
    imbalance: float | None
    tries: Iterable[str]
    vary: Iterable[str]
    n_best: int
    check: str | None
    what_if: bool
    rows: int
    confirmed: bool
    sensitive: bool
    serve_slo: str | None
    folder: str | None
    jobs: int
    scheduler: str
    quick: bool
    show: Callable[[list[str]], None] | None
    tick: Annotated[Tick, Argument(_silent, "called with what is done (candidates, shapes, Rows, changes), of how much, and a text.")]


class EmulateArgs(TypedDict, total=False):
    """Keyword arguments of `emulate`."""

    workload: str | None
    block: str
    gpus: int
    cluster: str
    tokens: int
    dtype: str | None
    backward: bool
    inject: Iterable[str]
    order: str
    path: str
    seed: int
    hidden: int
    expert_hidden: int
    experts: int | None
    topk: int | None
    options: "Mapping[str, Value] | None"
    placement: str
    dump: int | None
    progress: "Progress | None"


class DescribeArgs(TypedDict, total=False):
    """Keyword arguments of `describe`."""

    sequence: int
    layout: "str | Layout | None"
    schedule: str
    precision: str
    recompute: Sequence[str]
    dispatcher: str
    fixed_gib: float
    gpu: str
    cluster: "ClusterSource | None"


class SettingArgs(TypedDict, total=False):
    """Keyword arguments of `network` that say which network and traffic."""

    cluster: str | None
    curve: str | None
    topology: str | None
    k: int | None
    n: int | None
    vcs: int | None
    buffer: int | None
    packet_flits: int | None
    pattern: str | None
    burst: str | None
    speedup: int | None
    lanes: int | None
    allocator: str | None
    speculative: bool
    hold_switch: bool
    delays: str | None


class NetworkArgs(SettingArgs, total=False):
    """Keyword arguments of `network`."""

    saturation: bool
    seed: int
    period: int
    warm_up: int
    max_periods: int | None
    progress: "Progress | None"


class ValidateArgs(TypedDict, total=False):
    """Keyword arguments of `validate`."""

    hold_out: Sequence[str]
    constants: "Mapping[str, Fitted] | AnyPath | None"
    cluster: "ClusterSource | None"
    jobs: int
    progress: "Progress | None"


class CalibrateArgs(TypedDict, total=False):
    """Keyword arguments of `calibrate`."""

    base: str
    name: str | None
    said: Sequence[str]
    begun: Callable[[], None] | None


class ExplainArgs(TypedDict, total=False):
    """Keyword arguments of `explain`."""

    model: str | None
    layout: str
    batch: float
    sequence: int | None
    precision: str | None
    cluster: str | None
    ep_library: str
    what_if: Sequence[str]


class CaptureArgs(TypedDict, total=False):
    """Keyword arguments of `capture`."""

    tokenizer: Any
    layers: Sequence[int] | None
    max_tokens: int
    sequence: int | None
    progress: "Progress | None"


class HardwareArgs(TypedDict, total=False):
    """Keyword arguments of `hardware`."""

    seed: int
    out: str | None
    sequences: int | None
    area: bool
    liberty: str | None
    testbench: str | None
    prove: bool
    trace: tuple[str, str] | None
