"""`Machine` runs MoE layers, forward and backward, on real tensors through one registered system."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import numpy as np

from dysharp.base import Array, ByName, ConfigError, OnProgress, check_word, frozen
from dysharp.functional.experts import Experts
from dysharp.functional.faults import SCALE_OUT, Faults
from dysharp.functional.layer import SavedRows, Tensors
from dysharp.functional.numbers import Number, number_of
from dysharp.functional.orders import ORDERS
from dysharp.functional.packets import Statistics, run_packets
from dysharp.functional.rows import Outcome, run_rows
from dysharp.program import Kind, Program, Trace
from dysharp.program.relayout import relayout
from dysharp.program.verify import verify
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.specs.arguments import fitting
from dysharp.systems import get_system
from dysharp.workload import Routing, routing_from

PATHS = ("auto", "row", "packet")
PACKETS_IN_A_MOMENT = 20_000  # most packets for which path "auto" takes the packet path (about ten seconds)


@frozen
class Pass:
    """One finished pass: inputs, Program, result, and the counts of the packet path (None on the row path)."""

    direction: str
    tensors: Tensors
    program: Program
    outcome: Outcome
    statistics: Statistics | None


@frozen
class Context:
    """Data of a `forward` call for its `backward` call."""

    saved: SavedRows
    routing: Routing
    weight: Array
    number: Number
    n_tokens: int


@dataclass(slots=True)
class Machine:
    """The functional machine: it runs MoE layers on real tensors. `passes` keeps the last forward and backward pass.

    | field | meaning |
    |---|---|
    | `system` | name of a registered system |
    | `cluster` | name of a cluster, a TOML file, or a `Cluster` |
    | `gpus` | GPUs in use; tokens go to them in runs of equal length, the last GPU may get fewer |
    | `order`, `seed` | one of `orders.ORDERS`; 0 or more, for orders that are drawn |
    | `path` | "row", "packet" or "auto" (the packet path for few packets) |
    | `faults` | faults to inject: into the packet path, or into messages between NVLink domains |
    | `options` | {option of `system`: value}; `dysharp.Machine` fills in defaults and checks ranges |
    | `placement` | where experts lie, as `dysharp.run` takes it |
    | `dump_token` | token whose packets the packet path logs; None: none |
    | `progress` | called with what is done and of how much |
    | `tracer` | function that returns the Trace for order "trace", because this folder imports no engine |

    Raises ConfigError for a setting of a wrong type, an unknown system, cluster, order or path, for GPUs that the cluster does not have, and
    for faults of packets on the row path.
    """

    system: str = "dysharp"
    gpus: int = 4
    cluster: str | Cluster = "paper-gh200-nvl32"
    order: str = "random"
    seed: int = 0
    path: str = "auto"
    faults: Faults = field(default_factory=Faults)
    options: ByName = field(default_factory=dict)
    placement: str = "auto"
    tracer: Callable[[Program], Trace] | None = None
    dump_token: int | None = None
    progress: OnProgress | None = None
    passes: dict[str, Pass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Machine).items():
            setattr(self, name, fitting(name, getattr(self, name), kind))
        get_system(self.system)
        self._cluster()
        check_word(self.order, ORDERS, f"order {self.order!r}: unknown")
        check_word(self.path, PATHS, f"path {self.path!r}: unknown")
        if self.path == "row" and self.faults.of_packets:
            raise ConfigError("path: found row with injected faults, expected packet (faults live in its tables and channels)")

    def forward(self, x: Array, expert: Array, weight: Array, experts: Experts) -> tuple[Array, Context]:
        """`[tokens, hidden]` outputs in the dtype of `x`, and the context for `backward`.

        `x`: `[tokens, hidden]` int32, float32 or bfloat16. `expert`: `[tokens, topk]` integers, -1 = dropped. `weight`: `[tokens, topk]` gate
        weights, whole numbers beside int32. Raises ConfigError for wrong shapes and dtypes, and for `dump_token` on the row path;
        EmulationMismatch when the machine hangs.
        """
        x, expert, weight = map(np.asarray, (x, expert, weight))
        number = number_of(x, "tokens")
        if x.ndim != 2 or expert.shape[:1] != x.shape[:1] or weight.shape != expert.shape:
            raise ConfigError(
                f"layer: found tokens {x.shape}, experts {expert.shape}, weights {weight.shape}, expected [tokens, hidden] and twice [tokens, topk]"
            )
        if number.is_integer and (weight % 1 != 0).any():
            raise ConfigError("weight: found a part of a whole number, or none, beside tokens of int32, expected whole numbers")
        n = len(x)
        expert, weight = _pad(expert, self.gpus, -1), _pad(np.asarray(weight, number.work), self.gpus, 0)
        routing = routing_from(expert, experts.n_experts, self.gpus, placement=self.placement)
        system = get_system(self.system)
        routing = system.served(routing, system.options(**self.options))
        weight = np.where(routing.expert >= 0, weight, number.work.type(0))
        outcome = self._run("forward", Tensors(routing, number, experts, _pad(x, self.gpus, 0), weight))
        assert outcome.saved is not None
        return outcome.out[:n], Context(outcome.saved, routing, weight, number, n)

    def backward(self, context: Context, dy: Array, experts: Experts) -> tuple[Array, Array]:
        """(`[tokens, hidden]` input gradient, `[tokens, topk]` gate gradient).

        `experts` adds up its weight gradients.
        """
        outcome = self._run("backward", Tensors(context.routing, context.number, experts, _pad(dy, self.gpus, 0), context.weight, context.saved))
        assert outcome.gate_grad is not None
        return outcome.out[: context.n_tokens], outcome.gate_grad[: context.n_tokens]

    def plan(self, tensors: Tensors) -> Program:
        """The verified Program of a pass."""
        system = get_system(self.system)
        direction = "fwd" if tensors.saved is None else "bwd"
        program = system.plan(_model_of(tensors), self._cluster(), tensors.routing, direction, system.options(**self.options))
        verify(program)
        return program if tensors.saved is None else relayout(program, tensors.saved.row_slot)

    def _cluster(self) -> Cluster:
        return (load_cluster(self.cluster) if isinstance(self.cluster, str) else self.cluster).with_gpus(self.gpus)

    def _run(self, direction: str, tensors: Tensors) -> Outcome:
        program = self.plan(tensors)
        if self.order == "trace" and self.tracer is None:
            raise ConfigError('order: found "trace" without a tracer, expected one (dysharp.emulate brings the engine)')
        trace = self.tracer(program) if self.tracer and self.order == "trace" else None
        statistics, packets = None, self._sends_packets(program)
        if self.dump_token is not None and not packets:
            raise ConfigError(f"dump: found row path, expected packet path{self._way_to_packets(program)}")
        if packets:
            outcome, statistics = run_packets(
                program, tensors, self.order, seed=self.seed, trace=trace, faults=self.faults, cluster=self.cluster,
                dump_token=self.dump_token, progress=self.progress,
            )  # fmt: skip
        else:
            outcome = run_rows(program, tensors, self.order, seed=self.seed, trace=trace, faults=self.faults, progress=self.progress)
        self.passes[direction] = Pass(direction, tensors, program, outcome, statistics)
        return outcome

    def _sends_packets(self, program: Program) -> bool:
        if program.nets:
            if self.path == "packet" or self.faults.of_packets:
                what = "injected faults of packets" if self.faults.of_packets else "path packet"
                instead = f"expected one domain, or {', '.join(SCALE_OUT)}" if self.faults.of_packets else "expected one domain (use path row)"
                raise ConfigError(f"{what}: found network {program.nets[0].name!r} between NVLink domains, {instead}")
            return False
        if self.path != "auto" or self.faults.of_packets:
            return self.path != "row"
        if any(t.kind is Kind.PUSH_REDUCE for t in program.templates):
            return False  # no packet carries a contribution
        return int((np.diff(program.members.ptr) * -(-program.ops.bytes // 128)).sum()) <= PACKETS_IN_A_MOMENT

    def _way_to_packets(self, program: Program) -> str:
        """What brings the packet path, in brackets; "" where nothing does."""
        if program.nets:
            return " (use one NVLink domain)"
        if any(t.kind is Kind.PUSH_REDUCE for t in program.templates):
            return ""
        return " (use path packet)" if self.path == "row" else " (use fewer tokens, or path packet)"


def _pad(array: Array, n_gpus: int, value: Any) -> Array:
    """`array` with further rows of `value`, so that the GPUs divide the rows. The added tokens have no expert."""
    return np.ascontiguousarray(np.concatenate((array, np.full((-len(array) % n_gpus, *array.shape[1:]), value, array.dtype))))


def _model_of(t: Tensors) -> Model:
    """The shape of a layer as a `Model`, for the plan function of a system."""
    return Model(
        name="emulated", hidden=t.experts.hidden, expert_hidden=t.experts.mid, n_experts=t.experts.n_experts, topk=t.routing.topk,
        tokens_per_gpu=t.routing.tokens_per_gpu, n_matrices=3 if t.experts.inner == 2 * t.experts.mid else 2, element_bytes=t.number.bytes,
        gemm_dtype="bf16",
    )  # fmt: skip
