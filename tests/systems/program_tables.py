"""Digests of the Programs of every system: one per point and table, so that a changed Program is noticed and its table named.

Sizes are all different, so that a swap of two of them shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from dysharp.base.errors import DysharpError
from dysharp.program import Program
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.specs.choices import choices_overridden
from dysharp.specs.cluster import ScaleOut
from dysharp.systems import all_systems
from dysharp.systems.collectives import all_collectives, all_tensor_parallel
from dysharp.workload import Routing, make_routing
from dysharp.workload.collective import Collective, even
from dysharp.workload.sublayer import SubLayer
from tests.stored_values import Cases, Digests, Table, digests

REFUSED = "refused"
STORED = Table(__file__)
SMALL = Model("small", 384, 320, 12, 3, 37, n_matrices=3, element_bytes=2, gemm_dtype="fp8")
TALL = replace(SMALL, name="tall", hidden=256, expert_hidden=448, topk=2, tokens_per_gpu=140, n_matrices=2, gemm_dtype="bf16")
MODELS = {model.name: model for model in (SMALL, TALL)}
MODELS |= {"replicas": SMALL, "choices": replace(SMALL, name="choices", hidden=1792, expert_hidden=192)}
"""Models of the layers. "replicas": four experts have a second place. "choices": under `CHOICES`."""
CHOICES: dict[str, Any] = {
    "ccfuser.get_bytes": 4096, "dysharp.replica_form": "extension", "dysharp.window_headroom": 130, "gemm.tile_cols": 64, "gemm.tile_rows": 64,
    "machine.row_trains": 3, "machine.train_bytes": 4096, "machine.vcs_per_class": 3,
}  # fmt: skip
PLACEMENTS = {"replicas": "eplb:slots=16"}
TABLES = {
    "hardware": ("n_nodes", "hardware", "classes", "framings", "tables", "row_trains", "nets", "domain_nodes"),
    "templates": ("templates", "operators", "schema"),
    "durations": ("durations", "task_bytes"),
    "wires": ("wires",),
    "ops": ("ops",),
    "members": ("members",),
    "regions": ("regions",),
    "edges": ("edges",),
    "holds": ("holds", "semaphores"),
    "issuers": ("issuers", "pools", "chains", "sessions", "shares"),
    "declared": ("declared", "sections"),
}
"""Digests -> fields of a Program."""
VALUES: dict[str, tuple[Any, ...]] = {
    "a2a": ("2dh",), "al_misses": (3,), "blocks_per_sm": (3,), "buffer_tokens": (64,), "capacity": (0, 130), "cast": (False,), "chunk": (16,),
    "chunks": (3,), "chunk_bytes": (6144,), "column_blocks": (2,), "combine": ("fp8-plain", "mxfp8", "nvfp4"), "combine_chunk": (4,),
    "combine_window": (5,), "comm_sms": (9,), "compute": (False,), "copies": ("gpu",), "ctas": (5,), "degree": (3,), "dispatch_window": (7,),
    "dispatch": ("fp8", "fp8-plain", "fp4-plain", "mxfp8", "nvfp4"), "gemms": ("fused", "library"), "grid": ("turn",), "group": (2,),
    "mediation": (True,), "n_comm": (11,), "n_sm": (6,), "peers": ("nic",), "permute": (False,), "poll_ns": (350,), "preaccess": (True, False),
    "prelaunch": (True, False), "pxn": (False,), "rat_bank_entries": (8,), "rat_banks": (3,), "reduction": ("push",), "rows_at_once": (3,),
    "sums": ("mxfp8",),
    "second_gemm": ("kernel", "tile"), "seed": (9,), "shadow": (2,), "sides": ("two",), "slices": (1, 3), "store_bytes": (96,), "sum_places": (4,),
    "throttle": (True, False), "tile_rows": (48,), "totals": ("announced",), "weights": ("fp4", "mxfp8", "nvfp4"), "zero_copy": (True,),
    "blocks": (3,), "held": (False,), "late": (True,), "nvls": ("on", "off"), "ops": ("bulk",), "protocol": ("ll", "ll128", "simple"),
    "row_bytes": (640,),
}  # fmt: skip
"""Values of the options beside their defaults; `form` is a part of every point."""


PAIRS: dict[str, tuple[dict[str, Any], ...]] = {
    "ccfuser": ({"column_blocks": 3, "tile_rows": 32}, {"mediation": True, "blocks_per_sm": 1}),
    "deepep-ll": ({"peers": "nic", "dispatch": "fp8"},),
    "fastermoe": ({"shadow": 2, "mediation": True}, {"group": 1, "compute": False}),
    "hub-sharp": ({"reduction": "push", "sum_places": 4}, {"reduction": "push", "compute": False}),
    "hybrid-ep": ({"permute": False, "chunk": 7},),
    "megamoe": ({"dispatch": "mxfp8", "combine": "nvfp4", "cast": False},),
    "mh-base": ({"second_gemm": "tile", "grid": "turn"},),
    "moe-hub": ({"totals": "announced", "second_gemm": "kernel"}, {"totals": "announced", "compute": False}),
    "mori": ({"zero_copy": True, "combine": "fp8-plain"},),
    "trtllm-a2a": ({"sides": "two", "combine": "nvfp4"}, {"sides": "two", "dispatch": "fp8"}),
    "tutel": ({"a2a": "2dh", "degree": 3}, {"capacity": 0, "mediation": True}, {"copies": "gpu", "degree": 1}, {"capacity": 0, "degree": 1}),
}
"""Options that change together."""
PAPER = ("paper-gh200-nvl32/4", "paper-dgx-h100/2x2", "paper-dgx-h100/3x2", "hw-mi300x/3", "hw-mi300x/2x2")
REAL = ("hw-dgx-h100/4", "hw-dgx-h100/2x3", "hw-gb200-nvl72/6", "hw-mi300x/4", "hw-mi308x/2x2", "hw-dgx-h100/3x4")
"""Machines of the forms: `machine` reads their names."""


@dataclass(frozen=True)
class Point:
    """One Program. `work`: a name of `MODELS`, an operation of a collective, or of a sub-layer."""

    system: str
    work: str
    machine: str
    direction: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its column in the row of its system and direction."""
        return " ".join([self.work, self.machine, *(f"{key}={value}" for key, value in self.options.items())])


@cache
def machine(name: str) -> Cluster:
    """The cluster "NAME/GPUS", or "NAME/NODESxGPUS" with a slow NIC and a spine that is slower than its leaves."""
    base, _, size = name.partition("/")
    nodes, _, gpus = size.rpartition("x")
    out = ScaleOut(int(gpus), 47.0, 8.0, oversubscription=1.5, slow_nics=((1, 0.5),)) if nodes else None
    total = int(nodes or 1) * int(gpus)
    return replace(load_cluster(base), n_gpus=total, max_gpus=max(total, 8), scale_out=out)


@cache
def routing(work: str, gpus: int) -> Routing:
    """Skewed, with dropped choices, and no choice at all of token 1."""
    model = MODELS[work]
    drawn = make_routing("lognormal:0.65", model, gpus, model.tokens_per_gpu, seed=7, placement=PLACEMENTS.get(work, "auto"))
    gone = np.arange(drawn.slot.size).reshape(drawn.slot.shape) % 11 == 0
    gone[1] = True
    return replace(drawn, expert=np.where(gone, np.int32(-1), drawn.expert), slot=np.where(gone, np.int32(-1), drawn.slot))


def _varied(options: type) -> Iterator[dict[str, Any]]:
    """Each option at each of its other values, the other options at their defaults."""
    for one in () if options.__module__.endswith("uccl_ep") else dataclasses.fields(options):  # its Programs are DeepEP's
        yield from ({one.name: value} for value in VALUES.get(one.name, ()) if value != one.default)


def _layers(name: str) -> Iterator[Point]:
    one = all_systems()[name]
    forms = [{"form": form} for form in ("paper", "real")] if one.has_real_form else [{}]
    for form, places in zip(forms, (PAPER, REAL), strict=False):
        runs = [place for place in places if one.reach.runs_on(machine(place), form.get("form", "paper"))]
        for direction in ("fwd", "bwd"):
            yield from (Point(name, "small", place, direction, form) for place in (places if direction == "fwd" else runs))
            yield from (Point(name, work, places[0], direction, form) for work in ("replicas", "choices"))
            yield from (Point(name, "tall", place, direction, form) for place in runs[:4][direction == "bwd" :: 2] if "3x4" not in place)
            for option in (*_varied(one.options), *PAIRS.get(name, ())):
                if option.get("dispatch", "rows") in (*one.moves.formats, "fp8"):
                    yield Point(name, "small", places[0], direction, form | option)
        for option in (*_varied(one.options), *PAIRS.get(name, ())):
            if places[1] in runs and option.get("dispatch", "rows") in one.moves.formats:
                yield Point(name, "tall", places[1], "fwd", form | option)


UNEVEN = (40_960, 0, 16_640, 1_280)


def _collectives(name: str) -> Iterator[Point]:
    one = all_collectives()[name]
    places = ("hw-dgx-h100/3", "hw-gb200-nvl72/4", "hw-dgx-h100/2x2", "hw-dgx-h100/4x2")
    for operation in one.operations:
        for place in places[:: 1 + (name == "nccl")]:  # its ways are those of the others
            if one.domains or "x" not in place:
                yield from (Point(name, f"{operation}:{size}", place) for size in (3_840, 192_000, 9_600_000)[: 3 if place == places[0] else 2])
        yield Point(name, f"{operation}:uneven", "hw-dgx-h100/4")
        yield from (Point(name, f"{operation}:480000", "hw-dgx-h100/4", "", option) for option in _varied(one.options))


def _sub_layers(name: str) -> Iterator[Point]:
    one = all_tensor_parallel()[name]
    form = {"form": "paper"} if any(f.name == "form" for f in dataclasses.fields(one.options)) else {}
    for place in ("paper-cais-h100/2", "paper-cais-h100/3", "hw-dgx-h100/4"):
        yield from (Point(name, f"{tokens}x{hidden}x96x640:bf16", place) for tokens, hidden in ((384, 256), (1536, 512)))
    yield Point(name, "768x256x160x192:fp32", "paper-cais-h100/3", "", form)
    yield from (Point(name, "1536x512x96x640:bf16", "paper-cais-h100/3", "", form | option) for option in _varied(one.options))


def points_of(name: str) -> list[Point]:
    """The points of a system."""
    if name in all_systems():
        return list(_layers(name))
    return list(_collectives(name) if name in all_collectives() else _sub_layers(name))


SYSTEMS = [*all_systems(), *all_collectives(), *all_tensor_parallel()]


def plan(point: Point) -> Program:
    """The Program of a point."""
    cluster = machine(point.machine)
    if point.system in all_systems():
        layer = all_systems()[point.system]
        served = routing(point.work, cluster.n_gpus)
        with choices_overridden(CHOICES if point.work == "choices" else {}):
            return layer.plan(MODELS[point.work], cluster, served, point.direction, layer.options(**point.options))
    first, _, last = point.work.partition(":")
    one = (all_collectives() | all_tensor_parallel())[point.system]
    work: Collective | SubLayer
    if point.system in all_tensor_parallel():
        tokens, hidden, inner, outer = map(int, first.split("x"))
        work = SubLayer("toy", cluster.n_gpus, tokens, hidden, inner, outer, last)
    else:
        work = Collective(first, UNEVEN) if last == "uneven" else even(first, int(last), cluster.n_gpus)
    return one.plan(work, cluster, one.options(**point.options))


def program_digests(program: Program) -> Digests:
    """One digest for each of `TABLES`."""
    return digests({name: [getattr(program, field) for field in fields] for name, fields in TABLES.items()})


def told(point: Point) -> Digests | str:
    """The digests of a point, or "refused"."""
    try:
        return program_digests(plan(point))
    except DysharpError:
        return REFUSED


def columns(name: str, direction: str) -> dict[str, Digests | str]:
    """The points of a system and direction."""
    return {point.name: told(point) for point in points_of(name) if point.direction == direction}


CASES: Cases = {
    **{f"{name} {way}": partial(columns, name, way) for name in all_systems() for way in ("fwd", "bwd")},
    **{name: partial(columns, name, "") for name in (*all_collectives(), *all_tensor_parallel())},
}
