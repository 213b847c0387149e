"""The verb `describe`: what a whole model holds and counts, and what a layout of it takes on every pipeline rank."""

from dataclasses import asdict, field, replace
from typing import Unpack

from dysharp.api.arguments import DescribeArgs
from dysharp.base import Amounts, AnyPath, ByName, Columns, ConfigError, Rows, Tally, frozen, named
from dysharp.base.units import GiB, memory_to_bytes
from dysharp.model import CORE, Layout, check_domain, check_layout, chunks_of, formats_of, layout_of, parameters_of, recipe_for, trained
from dysharp.model.flops import CONVENTIONS, flops_of, model_flops
from dysharp.runs import takes
from dysharp.runs.arguments import arguments_of
from dysharp.specs import Cluster, WholeModel, load_cluster, load_gpu, load_whole
from dysharp.training import Saving, TrainingMemory, buffer_bytes, check_memory, make_schedule, memory_of, usual_schedule

GIGA = 1e9
PARTS = Columns("part", "parameters, B=parameters/1e9:.3f", "used by a token, B=active/1e9:.3f", "GFLOP forward=gflop:.2f")


@frozen
class Description:
    """A model, and with a layout the memory of a step. Fields hold plain values.

    | field | holds |
    |---|---|
    | `parameters` | `total`, `active` (head counted, embedding not), `active_inner`, `active_both`, `mtp` |
    | `parts` | per part: parameters, parameters that a token uses, forward GFLOP per token |
    | `gflop_per_token` | `forward`, `data_gradients`, `weight_gradients`, `total`, and `executed` by a flash kernel |
    | `model_gflop_per_token` | {convention: what a framework counts} |
    | `layout` | degrees, `gpus`, `edp`, `schedule`, `precision`; {} without a layout |
    | `memory` | per pipeline rank: `layers`, `in_flight`, GiB by line, `allocated`, `reserved`; [] without a layout |
    """

    model: str
    source: str
    sequence: int
    parameters: Tally
    parts: Rows
    gflop_per_token: Amounts
    model_gflop_per_token: Amounts
    layout: ByName = field(default_factory=dict)
    memory: Rows = field(default_factory=list)
    fixed_gib: Amounts = field(default_factory=dict)
    """GiB outside the allocator, by name."""

    def to_dict(self) -> ByName:
        """Fields of `--json`, plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """Parameters and FLOPs by part."""
        return PARTS.screen(self.parts)


@takes(DescribeArgs)
def describe(model: AnyPath | WholeModel, **request: Unpack[DescribeArgs]) -> Description:
    """Parameters and FLOPs of a whole model, and the memory of its training step.

    Raises `ConfigError` in one line that names the constraint.
    """
    whole, layout, sequence = load_whole(model), request["layout"], request["sequence"]
    about = _accounting(whole, sequence)
    if layout is None:
        for name, one in arguments_of(DescribeArgs).items():
            if name != "sequence" and request.get(name) not in (one.default, []):
                raise ConfigError(f"{name}: found it without a layout, expected --layout: only the memory of a step depends on it")
        return about
    spread = layout if isinstance(layout, Layout) else layout_of(layout)
    check_layout(whole, spread, sequence)
    memory = _memory(whole, spread, request)
    _check(spread, memory, request["gpu"], request["cluster"])
    return _with_memory(about, whole, spread, memory, request["schedule"] or usual_schedule(spread.vpp), request["precision"])


def _accounting(model: WholeModel, sequence: int) -> Description:
    p, flops = parameters_of(model), flops_of(model, sequence)
    names = [name for name, n in p.parts.items() if n or name in flops.forward]
    parts: Rows = [
        {"part": name, "parameters": p.parts[name], "active": p.active_parts[name], "gflop": flops.forward.get(name, 0.0) / GIGA} for name in names
    ]
    parts.append({"part": CORE, "parameters": 0, "active": 0, "gflop": flops.forward[CORE] / GIGA})
    counted = named(p, "total", "active", "active_inner", "active_both") | {"mtp": p.parts["MTP"]}
    work = {
        "forward": flops.forward_total, "data_gradients": flops.data_gradients, "weight_gradients": flops.weight_gradients,
        "total": flops.total, "executed": flops.executed,
    }  # fmt: skip
    by_convention = {name: model_flops(model, sequence, one) / GIGA for name, one in CONVENTIONS.items()}
    return Description(model.name, model.source, sequence, counted, parts, {k: v / GIGA for k, v in work.items()}, by_convention)


def _memory(model: WholeModel, layout: Layout, request: DescribeArgs) -> TrainingMemory:
    sequence, dispatcher, fixed_gib = request["sequence"], request["dispatcher"], request["fixed_gib"]
    order = make_schedule(request["schedule"] or usual_schedule(layout.vpp), layout.pp, layout.micro_batches, layout.vpp)
    fixed = {f"buffers of {dispatcher}": buffer_bytes(dispatcher, model, layout, sequence), "given": fixed_gib * GiB}
    recipe = recipe_for(trained(formats_of(request["precision"], model=model)))
    saving = Saving(recompute=tuple(request["recompute"]))
    return memory_of(model, layout, sequence, recipe, saving, order, {name: n for name, n in fixed.items() if n})


def _check(layout: Layout, memory: TrainingMemory, gpu: str, cluster: AnyPath | Cluster | None) -> None:
    if cluster is not None:
        machine = load_cluster(cluster)
        check_domain(layout, machine.domain_gpus, machine.domains)
        check_memory(memory, machine.hbm_bytes, machine.name)
    if gpu:
        check_memory(memory, memory_to_bytes(load_gpu(gpu).hbm_GB), gpu)


def _with_memory(about: Description, model: WholeModel, layout: Layout, memory: TrainingMemory, schedule: str, precision: str) -> Description:
    chunks = chunks_of(model, layout)
    rows = []
    for rank in memory.ranks:
        own = [chunks[stage] for stage in rank.stages]
        lines = {line: n / GiB for line, n in rank.lines.items()}
        rows.append(
            {
                "rank": rank.rank, "layers": sum(chunk.n_layers for chunk in own), "embedding": any(chunk.embedding for chunk in own),
                "mtp": sum(chunk.mtp for chunk in own), "head": any(chunk.head for chunk in own), "parameters": round(rank.parameters),
                "in_flight": sum(rank.held.values()), "gib": lines, "activations_gib": {op: n / GiB for op, n in rank.ops.items()},
                "allocated": rank.allocated / GiB, "reserved": memory.reserved(rank) / GiB,
            }
        )  # fmt: skip
    described = {**asdict(layout), "gpus": layout.gpus, "edp": layout.edp, "schedule": schedule, "precision": precision}
    return replace(about, layout=described, memory=rows, fixed_gib={name: n / GiB for name, n in memory.fixed.items()})
