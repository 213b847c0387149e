"""`Space`: every layout that a plan considers, as columns of arrays, and the constraint that rejects each of the others.

The product of all lists is walked in one fixed order, block by block. A candidate is a number in that order.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np

from dysharp.base import I64, AnyMapping, Bools, ByName, ConfigError, Numbers, Texts, check_word, frozen, show
from dysharp.costs import Machine
from dysharp.model import Layout
from dysharp.planning.experts import SPREAD, hottest
from dysharp.planning.offload import OFFLOADED
from dysharp.planning.offload import SETS as OFFLOADS
from dysharp.planning.schedules import PAIRED, SCHEDULES, V_SHAPED
from dysharp.specs import WholeModel
from dysharp.training import NO_RECIPE, Saving, TrainingRecipe

Column = I64
BLOCK = 1 << 18
"""Candidates that are looked at together."""
MOST = 1 << 26
FINE = ("mla_up_proj", "layernorm", "moe_act")
SETS: tuple[Texts, ...] = ((), ("moe_act",), FINE, ("full",))
"""Recompute sets that a plan tries where none are named, of the modules that the model has."""
OF_EXPERTS = ("moe_act", "expert_fc1")
"""Modules, for recomputation and offload, of models with experts."""
SYSTEMS = ("alltoall", "deepep", "hybrid-ep", "flat", "hierarchical", "dedup", "in-switch", "moe-hub")
"""EP systems: three dispatchers of `dysharp step`, then bytes on links (`experts`). The last two need hardware that nobody sells."""
RACK = 8
"""GPUs of a node; larger domains are racks."""
OVERLAPS = ("none", "pair")
"""EP communication: exposed, or beside the other direction of another micro-batch."""
WEIGHTS = ("whole", "sharded")
"""Weights, gradients and optimizer: of whole ranks, or shared by all ranks of dp x cp (FSDP)."""
PIPELINES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""Stages that a plan tries beside those that divide GPUs and layers."""
INTEGERS = ("tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch")


@frozen
class _Framework:
    """What a training framework offers, and what its layouts keep."""

    weights: Texts = WEIGHTS
    schedule: Texts = ("1f1b",)
    chunks: Literal["any", "slots", "equal"] = "any"
    """Splits of layers: any; equal numbers of slots, filled up with no-op layers in the last virtual stage; equal numbers of layers."""
    extends: bool = False
    """Whole experts lie on tensor ranks, so that EP groups are whole tensor groups; or every tensor rank has a slice of each expert."""


FRAMEWORKS = {
    "megatron": _Framework(), "nemo-24.07": _Framework(("whole",), chunks="equal"),
    "primus": _Framework(schedule=("1f1b", "zb-h1", "zbv", "v-half", "v-min")),
    "mindspeed": _Framework(schedule=("1f1b", "dualpipev"), chunks="slots", extends=True),
}  # fmt: skip
"""Megatron-LM and Megatron-Bridge (megatron-fsdp.md); NeMo 24.07, before layout strings; Primus (its schedules are rows tr370 to tr382); MindSpeed
(features noop-layers, megatron-moe-tp-extend-ep, dualpipev, custom_fsdp)."""


@frozen
class Space:
    """Lists of values, one per dimension of a layout, in the order in which candidates are counted."""

    tp: Numbers = (1,)
    pp: Numbers = (1,)
    vpp: Numbers = (1,)
    ep: Numbers = (1,)
    etp: Numbers = (1,)
    cp: Numbers = (1,)
    micro_batch: Numbers = (1,)
    recompute: tuple[Texts, ...] = SETS
    offload: tuple[Texts, ...] = ((),)
    weights: Texts = ("whole",)
    schedule: Texts = ("1f1b",)
    overlap: Texts = OVERLAPS
    system: Texts = ("flat", "dedup")

    def __post_init__(self) -> None:
        for one in fields(self):
            values = getattr(self, one.name)
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"space: {one.name}: found {show(list(values))}, expected different values, at least one")
            if one.name in INTEGERS and any(isinstance(v, bool) or not isinstance(v, int) or not 0 < v <= 1 << 20 for v in values):
                raise ConfigError(f"space: {one.name}: found {show(list(values))}, expected integers from 1 to {1 << 20}")
        for name, known in (("weights", WEIGHTS), ("schedule", SCHEDULES), ("overlap", OVERLAPS), ("system", SYSTEMS)):
            for value in getattr(self, name):
                check_word(value, known, f"space: {name}: {show(value)}: unknown")
        for modules in self.recompute:
            Saving(modules)
        for module in (module for modules in self.offload for module in modules):
            check_word(module, OFFLOADED, f"space: offload: {show(module)}: unknown")
        if self.size > MOST:
            raise ConfigError(f"space: found {self.size:,} candidates, expected at most {MOST:,}: give fewer values")

    @property
    def lists(self) -> dict[str, tuple[Any, ...]]:
        """{dimension: its values}."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def size(self) -> int:
        """Candidates."""
        return math.prod(map(len, self.lists.values()))

    def blocks(self) -> Iterator[tuple[Column, dict[str, Column]]]:
        """(numbers, columns) of `BLOCK` candidates at a time."""
        for first in range(0, self.size, BLOCK):
            numbers = np.arange(first, min(first + BLOCK, self.size), dtype=np.int64)
            yield numbers, self.columns(numbers)

    def columns(self, numbers: Column) -> dict[str, Column]:
        """The values of candidates; of dimensions that are no integers, places in their lists."""
        places = zip(self.lists.items(), self.places(numbers), strict=True)
        return {name: np.asarray(values, np.int64)[at] if name in INTEGERS else at.astype(np.int64) for (name, values), at in places}

    def places(self, numbers: Column | int) -> tuple[Column, ...]:
        """Where the values of candidates stand in their lists."""
        return np.unravel_index(numbers, tuple(map(len, self.lists.values())))

    def number(self, values: AnyMapping) -> int:
        """The candidate with these values; -1: the space has none."""
        at = [known.index(values[name]) if values[name] in known else -1 for name, known in self.lists.items()]
        return -1 if -1 in at else int(np.ravel_multi_index(at, [*map(len, self.lists.values())]))

    def candidate(self, number: int) -> ByName:
        """The values of candidate `number`."""
        return {name: values[int(at)] for (name, values), at in zip(self.lists.items(), self.places(number), strict=True)}


@frozen
class Task:
    """What a plan is for: a model, GPUs, the batch of a step in sequences, tokens of a sequence, recipe of precision."""

    model: WholeModel
    gpus: int
    batch: int
    sequence: int = 4096
    precision: str = "bf16"
    training_recipe: TrainingRecipe = NO_RECIPE
    """What the framework does beside the layout. Its dispatcher, recomputation and EP overlap are those of candidates."""
    spread: float = SPREAD
    """Spread of the experts' loads over their mean."""
    imbalance: float | None = None
    """Rows of the most loaded rank over the mean, for any EP degree; None: by `spread` and degree."""

    framework: str = "megatron"
    """Of `FRAMEWORKS`."""

    @property
    def rules(self) -> _Framework:
        """What the framework offers and asks."""
        return FRAMEWORKS[self.framework]

    def hottest(self, ep: int) -> float:
        """Rows of the hottest of `ep` ranks over the mean."""
        if self.imbalance is not None:
            return self.imbalance
        return hottest(self.model.layer.n_experts, ep, self.spread) if self.model.layer else 1.0

    def layout(self, values: AnyMapping, stages: str = "") -> Layout:
        """The layout of a candidate."""
        dp = self.gpus // (values["tp"] * values["cp"] * values["pp"])
        degrees = {name: values[name] for name in INTEGERS} | {"fsdp": dp * values["cp"] if values["weights"] == "sharded" else 1}
        return Layout(**degrees, dp=dp, micro_batches=self.batch // (dp * values["micro_batch"]), stages=stages)


def _powers(most: int) -> Numbers:
    """Powers of two up to `most`."""
    return tuple(1 << i for i in range(max(most, 1).bit_length()))


def default_space(task: Task, machine: Machine, given: dict[str, tuple[Any, ...]] | None = None) -> Space:
    """The lists that a plan tries where `given` has none for a dimension."""
    model, moe, domain_gpus = task.model, task.model.layer is not None, machine.domain
    slots = model.n_layers + model.mtp + 2

    def degrees(most: int, count: int) -> Numbers:
        """Powers of two up to `most`, and what divides the GPUs and a count of the model, in groups that fill domains or lie in one."""
        own = (n for n in range(1, most + 1) if task.gpus % n == count % n == 0)
        return tuple(sorted({*_powers(most), *(n for n in own if Layout.fits(1, 1, n, task.gpus, domain_gpus)[2])}))

    whole = Space(
        tp=degrees(min(8, domain_gpus, task.gpus), model.attention.heads),
        pp=tuple(n for n in range(1, min(32, task.gpus, slots) + 1) if n in PIPELINES or task.gpus % n == model.n_layers % n == 0),
        vpp=tuple(n for n in (1, 2, 3, 4, 5, 6, 8) if n <= slots),
        ep=degrees(min(task.gpus, model.layer.n_experts), model.layer.n_experts) if model.layer else (1,),
        cp=degrees(max(1, task.sequence // 4096), task.sequence // 2),
        micro_batch=(1, 2, 4, 8),
        recompute=_had(model, SETS),
        etp=_slices(task, machine) if moe else (1,),
        offload=_had(model, OFFLOADS),
        weights=task.rules.weights,
        schedule=task.rules.schedule,
        overlap=OVERLAPS if moe else ("none",),
        system=_systems(task, machine) if moe else ("flat",),
    )
    return replace(whole, **(given or {}))


def _had(model: WholeModel, sets: tuple[Texts, ...]) -> tuple[Texts, ...]:
    """Sets of modules without those that the model has not; each set once."""
    absent = ("mla_up_proj",) * (not model.attention.mla) + OF_EXPERTS * (model.layer is None)
    return tuple(dict.fromkeys(tuple(module for module in modules if module not in absent) for modules in sets))


def _slices(task: Task, machine: Machine) -> Numbers:
    most = 1 if machine.cluster.gpu else min(RACK, machine.domain)
    return _powers(most) if task.rules.extends else tuple(sorted({1, most}))


def _systems(task: Task, machine: Machine) -> Texts:
    if task.rules.extends:
        return ("flat", "hierarchical") if task.gpus > machine.domain else ("flat",)
    if machine.cluster.gpu:
        return ("alltoall", "hybrid-ep" if machine.domain > RACK else "deepep")
    return ("flat", "hierarchical", "dedup") if task.gpus > machine.domain else ("flat", "dedup")


def constraints(task: Task, space: Space, c: dict[str, Column], machine: Machine) -> Iterator[tuple[str, Bools]]:
    """(constraint, which candidates keep it), in the order in which they reject."""
    model, a, domain_gpus = task.model, task.model.attention, machine.domain
    per = c["tp"] * c["cp"] * c["pp"]
    dp = np.maximum(task.gpus // per, 1)
    stage, share = c["tp"] * c["cp"] * dp, dp * c["micro_batch"]
    yield "tp x cp x pp divides the GPUs", task.gpus % per == 0
    tensor, slices, whole_domains = Layout.fits(c["tp"], c["etp"], c["ep"], task.gpus, domain_gpus)
    yield "tp and etp inside a domain", tensor & slices
    heads = a.heads % c["tp"] == 0
    if not a.mla:
        heads &= (a.kv_heads % c["tp"] == 0) | (c["tp"] % a.kv_heads == 0)
    yield "tp divides the heads", heads
    widths = [n for n in (model.dense_hidden if model.dense_layers else 0, model.shared_hidden) if n]
    yield "tp divides the FFN's width", np.logical_and.reduce([n % c["tp"] == 0 for n in widths] or [heads | True])
    if not machine.cluster.scale_out:  # `step` and `model` refuse them, too: EP over a network that nobody states would decide the answer
        yield "ep x etp inside the only NVLink domain: the cluster states no network", c["ep"] * c["etp"] <= domain_gpus
    yield "ep x etp inside a domain, or over whole ones", whole_domains
    yield "ep x etp divides the GPUs of a stage", stage % (c["ep"] * c["etp"]) == 0
    if model.layer is not None:
        yield "ep divides the experts", model.layer.n_experts % c["ep"] == 0
        yield "etp divides the experts' width", model.layer.expert_hidden % c["etp"] == 0
    else:
        yield "no experts to spread", c["ep"] * c["etp"] == 1
    yield "dp x mbs divides the batch", task.batch % share == 0
    yield "cp divides the sequence in pairs", (c["cp"] == 1) | (task.sequence % (2 * c["cp"]) == 0)
    yield "tp x cp divides the tokens of a micro-batch", c["micro_batch"] * task.sequence % (c["tp"] * c["cp"]) == 0
    yield "vpp is 1 without a pipeline", (c["pp"] > 1) | (c["vpp"] == 1)
    yield "a layer for every chunk", c["pp"] * c["vpp"] <= model.n_layers + model.mtp + 2
    m = task.batch // share
    loop, shaped, paired, two_way = (
        np.asarray([name in some for name in space.schedule])[c["schedule"]] for some in (("1f1b",), V_SHAPED, PAIRED, ("dualpipe",))
    )
    yield from _rules(task, space, c, ~loop)
    yield "interleaved: pp divides the micro-batches", ~loop | (c["vpp"] == 1) | (m % c["pp"] == 0)
    yield "v shapes have two chunks per rank, zb-h1 and dualpipe one, and a pipeline", loop | ((c["vpp"] == 1 + shaped) & (c["pp"] > 1))
    yield "dualpipe and dualpipev: two micro-batches per rank", ~paired | (m >= 2 * c["pp"])
    yield "dualpipe: even numbers of ranks and micro-batches", ~two_way | ((c["pp"] % 2 == 0) & (m % 2 == 0))
    pair = is_one(space.overlap, c["overlap"], "pair")
    again = np.asarray([bool({"full", "moe"} & set(one)) for one in space.recompute])[c["recompute"]]
    yield "overlap needs EP, passes in pairs (vpp above 1 in a pipeline, dualpipe), and no recomputed exchange", ~pair | (
        (c["ep"] > 1) & ((loop & ((c["vpp"] > 1) | (c["pp"] == 1))) | paired) & ~again
    )  # fmt: skip
    whole = np.asarray(["full" in one for one in space.recompute])[c["recompute"]]
    yield "sharded weights need replicas", (dp * c["cp"] > 1) | ~is_one(space.weights, c["weights"], "sharded")
    yield "swap needs tensors that full recomputation keeps", ~whole | is_one(space.offload, c["offload"], ())
    if task.training_recipe.graphs:
        yield "no full recomputation under graphs", ~whole
    yield "overlap needs a second micro-batch", ~pair | (m > np.where(c["pp"] > 1, c["pp"], 1))
    wide = is_one(space.system, c["system"], "hierarchical")
    yield "an EP system needs experts on several GPUs", (c["ep"] * c["etp"] > 1) | (c["system"] == 0)
    yield "hierarchical needs whole experts over several domains and tensor ranks", ~wide | (
        (c["ep"] > domain_gpus) & (c["etp"] == 1) & (c["tp"] > 1)
    )  # fmt: skip


def is_one(values: tuple[Any, ...], places: Column, one: Any) -> Bools:
    """Which candidates have the value `one` of a dimension."""
    return np.asarray([value == one for value in values])[places]


def _rules(task: Task, space: Space, c: dict[str, Column], split: Bools) -> Iterator[tuple[str, Bools]]:
    """Constraints of the framework. `split`: candidates whose schedule is not 1F1B."""
    model, chunks = task.model, c["pp"] * c["vpp"]
    if task.rules.chunks == "equal":
        yield "equal chunks", model.n_layers % chunks == 0
    if task.rules.chunks == "slots":
        layers = model.n_layers + model.mtp
        yield "slots: no-op layers in the last virtual stage", chunks * -(-layers // chunks) - layers <= c["pp"] * -(-layers // chunks)
    if task.rules.extends:
        plain = is_one(space.weights, c["weights"], "whole") & is_one(space.offload, c["offload"], ()) & (c["cp"] == 1)
        yield "split schedules: whole weights, no swap, cp = 1", plain | ~split
        if model.layer is not None:
            yield "ep a multiple of tp, or etp = tp", ((c["etp"] == 1) & (c["ep"] % c["tp"] == 0)) | (c["etp"] == c["tp"])
            yield "overlap needs whole experts", (c["etp"] == 1) | is_one(space.overlap, c["overlap"], "none")


def broken_by(task: Task, space: Space, machine: Machine) -> Iterator[str]:
    """Constraints that no candidate of `space` keeps."""
    _, columns = next(space.blocks())
    yield from (name for name, keeps in constraints(task, space, columns, machine) if not keeps.any())
