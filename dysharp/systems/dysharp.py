"""DySHARP: dynamic multicast and reduction in the switch, and token-centric fusion of Dispatch, GEMMs and Combine."""

from dataclasses import replace

from dysharp.base import ConfigError
from dysharp.program import I32, Discipline, Framing, Tail, frozen
from dysharp.specs import choice_int
from dysharp.systems import SUMS, Change, Costs, Facts, Moves, Reach, Shown, system
from dysharp.systems.building import DYMULTIMEM, ROWS, WIRE, LayerBuilder, Transfers, fused, in_pairs, one_after_another
from dysharp.systems.building.between.in_switch import sums_in_switch
from dysharp.systems.building.layer import EXPLICIT

SOURCE = "DySHARP (arXiv 2605.05607) sections III, IV"


@frozen
class Options:
    """`dispatch_window`, `combine_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py).

    `dispatch`: format of rows, "rows" (the model's), "fp8", "fp8-ue8m0", "mxfp8" or "nvfp4". `combine`: format of the rows that the switch adds in
    FP32, `sums`: of the sums that it sends, "rows" or "mxfp8"; the switch converts.
    `weights`: "model", "fp4", "mxfp8" or "nvfp4".
    `al_misses`: misses of the AL TLB that a hub has under way at once; 0 = as many as rows at line rate need.
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch_window: int = choice_int("dysharp.dispatch_window")
    combine_window: int = choice_int("dysharp.combine_window")
    al_misses: int = choice_int("hub.al_misses")
    dispatch: str = "rows"
    combine: str = "rows"
    sums: str = "rows"
    weights: str = "model"
    compute: bool = True


FACTS = Facts(
    source=SOURCE,
    options=Options,
    moves=Moves("multicast", between="dysharp", formats=WIRE, results=("rows", "mxfp8")),
    costs=Costs(permutes=0, fused=True, drops="AL TLB misses, TS/OR overflow, polling"),
    reach=Reach(domains=("paper",), assumes="a hypothetical scale-out switch that multicasts and sums", switch=SUMS),
    shown=Shown(
        "#009E73", Change("DySHARP switches", "as `overlap by rows`, and switches multicast and sum; the hub of each GPU places rows", rank=2)
    ),
)
INSIDE = replace(FACTS, reach=Reach(switch=SUMS))
"""Facts of the ablations, which stay inside one NVLink domain."""


def _start(layer: LayerBuilder, options: Options, framing: Framing, *, by_rows: bool = True, together: bool = True) -> int:
    """Add the exchange of `nactive` and Dispatch, which all DySHARP systems share. Returns the combine window.

    `by_rows`: ops wait for single tiles of rows. `together`: Dispatch and Combine are under way at once.
    """
    dispatch_window, combine_window = layer.windows(framing, options.dispatch_window, options.combine_window, together=together)
    counts = counted(layer)
    layer.wait_first(layer.dispatch_multicast(dispatch_window, framing, by_rows=by_rows), layer.target_fetch(counts))
    return combine_window


def counted(layer: LayerBuilder) -> I32 | None:
    """The exchange of `nactive`. None: the AL Table of a forward pass holds the layout of its backward pass (docs/design/0005-backward.md)."""
    return layer.exchange(4 * layer.model.n_experts, name="nactive") if layer.direction == "fwd" else None


def _all_at_once(layer: LayerBuilder, options: Options, framing: Framing) -> None:
    """A tile starts when its rows have arrived. A token is combined when all of its experts have notified."""
    fused(layer, layer.combine_pulls(Discipline.SMALLEST_KEY, _start(layer, options, framing), framing).of_useful_row)


@system("dysharp", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """Full DySHARP. Over several domains a hypothetical scale-out switch multicasts and adds, too (building/between/in_switch.py)."""
    if layer.cluster.domains > 1:
        if (options.combine, options.sums) != ("rows", "rows"):
            raise ConfigError(f"dysharp.combine, dysharp.sums: found {options.combine}, {options.sums} over several domains, expected rows")
        windows = layer.windows(DYMULTIMEM, options.dispatch_window, options.combine_window)
        sums_in_switch(layer, DYMULTIMEM, *windows, layer.target_fetch(counted(layer)))
    else:
        _all_at_once(layer, options, DYMULTIMEM)


EXPLICIT_FACTS = replace(
    INSIDE,
    inert=("al_misses",),
    source="DySHARP (arXiv 2605.05607) Fig. 19: static multimem with explicit target addresses, fused",
    costs=replace(FACTS.costs, drops="the sender's tracking of remote memory state"),
    shown=Shown("#332288"),
)


@system("explicit", EXPLICIT_FACTS)
def _plan_explicit(layer: LayerBuilder, options: Options) -> None:
    """Token-centric fusion with explicit target lists in requests and acknowledgements."""
    _all_at_once(layer, options, EXPLICIT)


UNFUSED = replace(INSIDE, costs=Costs(permutes=0, fused=False, drops="as dysharp"))


@system("dysharp-basic", replace(UNFUSED, source=f"{SOURCE}, ablation (c)", shown=Shown("#D55E00")))
def _plan_basic(layer: LayerBuilder, options: Options) -> None:
    """Dynamic addressing only: Dispatch, GEMM-1, GEMM-2, Combine one after the other."""
    window = _start(layer, options, DYMULTIMEM, by_rows=False, together=False)
    done = layer.exchange(16, name="barrier", after=one_after_another(layer))
    layer.wait_first(layer.combine_pulls(Discipline.PROGRAM_ORDER, window), done, tail=Tail.TILE_READY)


@system("dysharp-comet", replace(UNFUSED, source=f"{SOURCE}, ablation (d)", shown=Shown("#F0E442")))
def _plan_comet(layer: LayerBuilder, options: Options) -> None:
    """Dynamic addressing with COMET's overlap inside each operator pair and its barrier between the GEMMs."""
    pulls = layer.combine_pulls(Discipline.SMALLEST_KEY, _start(layer, options, DYMULTIMEM, together=False))
    in_pairs(layer, pulls.of_useful_row, UNFUSED.costs)


@frozen
class FusedOptions:
    """`dispatch`: format of rows, "rows" (the model's), "fp8" or "mxfp8".

    `weights`: format of weights, "model", "fp4", "mxfp8" or "nvfp4".
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch: str = "rows"
    weights: str = "model"
    compute: bool = True


FUSION = Facts(
    source="DySHARP (arXiv 2605.05607) section IV, ablation (e)",
    options=FusedOptions,
    moves=Moves("one_copy_per_gpu", formats=ROWS),
    costs=Costs(permutes=0, fused=True, drops="the addresses of pushed rows: counts and offsets cost nothing"),
    shown=Shown(
        "#56B4E9",
        Change(
            "overlap by rows", "one kernel with the tiles of Mega MoE on today's switches; Dispatch, GEMMs and Combine overlap row by row", rank=1
        ),
    ),
)


@system("fusion-only", FUSION)
def plan_fused(layer: LayerBuilder, options: FusedOptions) -> None:
    """Token-centric fusion without in-switch computing: Dispatch, GEMMs and Combine overlap, one copy per GPU each way.

    A GPU returns the partial sum of a token as soon as it has computed its experts of the token.
    """
    layer.dispatch_puts(by_rows=True)
    fused(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row)


@frozen
class _MulticastOptions(FusedOptions):
    """As `FusedOptions`. `dispatch_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py)."""

    dispatch_window: int = choice_int("dysharp.dispatch_window")


@frozen
class _ReductionOptions(FusedOptions):
    """As `FusedOptions`. `combine_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py)."""

    combine_window: int = choice_int("dysharp.combine_window")


PART = replace(EXPLICIT_FACTS, source=f"{SOURCE}: a part alone")
"""Facts of the rungs between ablations (docs/design/0038)."""
MULTICAST = replace(PART, shown=Shown("#117755"), options=_MulticastOptions, moves=Moves("multicast", "one_copy_per_gpu", formats=ROWS))
REDUCTION = replace(PART, shown=Shown("#882255"), options=_ReductionOptions, moves=Moves("one_copy_per_gpu", "multicast", formats=ROWS))


@system("multicast-only", MULTICAST)
def _plan_multicast(layer: LayerBuilder, options: _MulticastOptions) -> None:
    """Token-centric fusion with a multicast to explicit targets alone: each GPU pushes its sum of a token back."""
    window, _ = layer.windows(EXPLICIT, options.dispatch_window, 0)
    layer.wait_first(layer.dispatch_multicast(window, EXPLICIT, by_rows=True), layer.target_fetch(counted(layer)))
    fused(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row)


@system("reduction-only", REDUCTION)
def _plan_reduction(layer: LayerBuilder, options: _ReductionOptions) -> None:
    """Token-centric fusion with sums over explicit targets in the switch alone: one copy per GPU goes out, and pulls wait for their lists."""
    layer.dispatch_puts(by_rows=True)
    pulls = layer.combine_pulls(Discipline.SMALLEST_KEY, layer.windows(EXPLICIT, 0, options.combine_window)[1], EXPLICIT)
    layer.wait_each(pulls.op, layer.target_fetch(counted(layer))[pulls.node])
    fused(layer, pulls.of_useful_row)


def _one_by_one(layer: LayerBuilder, window: int) -> Transfers:
    """The GEMMs behind Dispatch, and pulls of explicit targets behind a barrier."""
    done = layer.exchange(16, name="barrier", after=one_after_another(layer))
    layer.wait_first(pulls := layer.combine_pulls(Discipline.PROGRAM_ORDER, window, EXPLICIT), done, tail=Tail.TILE_READY)
    return pulls


@system("reduction-basic", replace(REDUCTION, costs=UNFUSED.costs, shown=Shown("#AA7744")))
def _plan_reduction_basic(layer: LayerBuilder, options: _ReductionOptions) -> None:
    """Sums over explicit targets in the switch alone: one copy per GPU goes out, and the operators run one after the other."""
    layer.dispatch_puts()
    fetched = layer.target_fetch(counted(layer))
    layer.wait_first(_one_by_one(layer, layer.windows(EXPLICIT, 0, options.combine_window, together=False)[1]), fetched)


@system("explicit-basic", replace(PART, costs=UNFUSED.costs, shown=Shown("#4477AA")))
def _plan_explicit_basic(layer: LayerBuilder, options: Options) -> None:
    """Multicast and sums in the switch with explicit targets: the operators run one after the other."""
    _one_by_one(layer, _start(layer, options, EXPLICIT, by_rows=False, together=False))
