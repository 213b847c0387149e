"""DySHARP: dynamic multicast and reduction in the switch, and token-centric fusion of Dispatch, GEMMs and Combine."""

from dataclasses import dataclass, replace

from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Program, Tail
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.between.in_switch import sums_in_switch
from dysharp.systems.building.experts import fused, in_pairs, one_after_another
from dysharp.systems.building.layer import DYMULTIMEM, EXPLICIT, LayerBuilder
from dysharp.systems.building.paper_layers import ROWS, formatted_layer
from dysharp.systems.facts import SUMS, Change, Costs, Facts, Moves, Reach, Shown
from dysharp.systems.registry import system
from dysharp.workload import Routing

SOURCE = "DySHARP (arXiv 2605.05607) sections III, IV"


@dataclass(frozen=True, slots=True)
class Options:
    """`dispatch_window`, `combine_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py).

    `dispatch`: format of rows, "rows" (the model's), "fp8" or "mxfp8". `weights`: "model", "fp4", "mxfp8" or "nvfp4".
    `al_misses`: misses of the AL TLB that a hub has under way at once; 0 = as many as rows at line rate need.
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch_window: int = choice_int("dysharp.dispatch_window")
    combine_window: int = choice_int("dysharp.combine_window")
    al_misses: int = choice_int("hub.al_misses")
    dispatch: str = "rows"
    weights: str = "model"
    compute: bool = True


FACTS = Facts(
    source=SOURCE,
    options=Options,
    moves=Moves("multicast", between="dysharp", formats=ROWS),
    costs=Costs(permutes=0, fused=True, drops="AL TLB misses, TS/OR overflow, polling"),
    reach=Reach(domains=("paper",), assumes="a hypothetical scale-out switch that multicasts and sums", switch=SUMS),
    shown=Shown(
        "#009E73", Change("DySHARP switches", "as `overlap by rows`, and switches multicast and sum; the hub of each GPU places rows", rank=2)
    ),
)
INSIDE = replace(FACTS, reach=Reach(switch=SUMS))
"""Facts of the ablations, which stay inside one NVLink domain."""


def start(
    model: Model,
    cluster: Cluster,
    routing: Routing,
    direction: str,
    options: Options,
    framing: Framing,
    *,
    one_kernel: bool = False,
    by_rows: bool = True,
    together: bool = True,
) -> tuple[LayerBuilder, int]:
    """Add the exchange of `nactive` and Dispatch, which all DySHARP systems share. Returns (layer, combine window).

    `by_rows`: ops wait for single tiles of rows. `together`: Dispatch and Combine are under way at once.
    A backward pass exchanges nothing: the AL Table of its forward pass holds the layout (docs/design/0005-backward.md).
    """
    words = {"dispatch": options.dispatch, "weights": options.weights}
    layer = formatted_layer("dysharp", model, cluster, routing, direction, compute=options.compute, one_kernel=one_kernel, **words)
    layer.al_misses = options.al_misses
    dispatch_window, combine_window = layer.windows(framing, options.dispatch_window, options.combine_window, together=together)
    counts = layer.exchange(4 * model.n_experts, name="nactive") if direction == "fwd" else None
    dispatch = layer.dispatch_multicast(dispatch_window, framing, by_rows=by_rows)
    layer.wait_first(dispatch, layer.target_fetch(counts))
    return layer, combine_window


def over_domains(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """DySHARP in every domain, and multicast and sums in a hypothetical scale-out switch (building/between/in_switch.py)."""
    words = {"dispatch": options.dispatch, "weights": options.weights}
    layer = formatted_layer("dysharp", model, cluster, routing, direction, compute=options.compute, one_kernel=True, **words)
    layer.al_misses = options.al_misses
    windows = layer.windows(DYMULTIMEM, options.dispatch_window, options.combine_window)
    counts = layer.exchange(4 * model.n_experts, name="nactive") if direction == "fwd" else None
    sums_in_switch(layer, DYMULTIMEM, *windows, layer.target_fetch(counts))
    return layer.build(FACTS.moves)


def all_at_once(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options, framing: Framing) -> Program:
    """A tile starts when its rows have arrived. A token is combined when all of its experts have notified."""
    layer, window = start(model, cluster, routing, direction, options, framing, one_kernel=True)
    pulls = layer.combine_pulls(Discipline.SMALLEST_KEY, window, framing)
    fused(layer, pulls.of_useful_row)
    return layer.build(FACTS.moves)


@system("dysharp", FACTS)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Full DySHARP."""
    if cluster.domains > 1:
        return over_domains(model, cluster, routing, direction, options)
    return all_at_once(model, cluster, routing, direction, options, DYMULTIMEM)


EXPLICIT_FACTS = replace(
    INSIDE,
    source="DySHARP (arXiv 2605.05607) Fig. 19: static multimem with explicit target addresses, fused",
    costs=replace(FACTS.costs, drops="the sender's tracking of remote memory state"),
    shown=Shown("#332288"),
)


@system("explicit", EXPLICIT_FACTS)
def plan_explicit(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Token-centric fusion with explicit target lists in requests and acknowledgements."""
    return all_at_once(model, cluster, routing, direction, options, EXPLICIT)


UNFUSED = replace(INSIDE, costs=Costs(permutes=0, fused=False, drops="as dysharp"))


@system("dysharp-basic", replace(UNFUSED, source=f"{SOURCE}, ablation (c)", shown=Shown("#D55E00")))
def plan_basic(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dynamic addressing only: Dispatch, GEMM-1, GEMM-2, Combine one after the other."""
    layer, window = start(model, cluster, routing, direction, options, DYMULTIMEM, by_rows=False, together=False)
    done = layer.exchange(16, name="barrier", after=one_after_another(layer))
    pulls = layer.combine_pulls(Discipline.PROGRAM_ORDER, window)
    layer.wait_first(pulls, done, tail=Tail.TILE_READY)
    return layer.build(FACTS.moves)


@system("dysharp-comet", replace(UNFUSED, source=f"{SOURCE}, ablation (d)", shown=Shown("#F0E442")))
def plan_comet(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dynamic addressing with COMET's overlap inside each operator pair and its barrier between the GEMMs."""
    layer, window = start(model, cluster, routing, direction, options, DYMULTIMEM, together=False)
    pulls = layer.combine_pulls(Discipline.SMALLEST_KEY, window)
    in_pairs(layer, pulls.of_useful_row, UNFUSED.costs)
    return layer.build(FACTS.moves)
