"""Whole layers in paper form that several systems share.

A GPU waits for its own rows and GEMMs only; no kernel, barrier or SM costs time.

Mediation is what software does around Dispatch and Combine because a store needs an address before it leaves. The option `mediation` of a system
adds it to a paper form. Costs are the choices `mediation.*`; they are the costs of no particular GPU. Real forms have the measured steps of their
software instead.

`begun`: the builder of a system. Systems that compute and communicate in one kernel have the tiles of Mega MoE on an hw cluster.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dysharp.base import PS_PER_US, ByName, ns_to_ps
from dysharp.costs import Tiling
from dysharp.program import I32, I64, Discipline
from dysharp.specs import choice_int
from dysharp.systems.building.batch import Batch, placed
from dysharp.systems.building.between.two_hop import TwoHop
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.formats import WEIGHT_BYTES, check, row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.facts import Facts, Layer

Begins = Callable[[Layer, Any], ByName]
"""(layer, options) -> keywords of `begun` and of the builder. Raises ConfigError for options that contradict each other."""


def copy_per_gpu(layer: LayerBuilder, options: Any = None) -> None:
    """Dispatch, one GEMM after the other, Combine.

    A token is sent once to each of its GPUs, and each GPU sends one sum back. Over several NVLink domains a token goes once to each
    remote domain, which forwards it (`between.two_hop`).
    """
    if layer.cluster.domains > 1:
        _two_hops(layer)
    else:
        layer.dispatch_puts()
        finished = one_after_another(layer)
        layer.wait_first(layer.combine_puts(Discipline.PROGRAM_ORDER), finished)


def _two_hops(layer: LayerBuilder) -> None:
    """Dispatch, one GEMM after the other and Combine without software costs: rows are forwarded as they arrive."""
    hop = TwoHop(layer)
    order = hop.remote
    _, tiles = hop.send(layer.issuers("nic")[hop.source[order]], order, np.arange(len(order)), len(order))
    forwards = hop.forward(layer.ready("dispatch"))
    landed = placed(len(hop.token), order, tiles)
    layer.wait_tiles(forwards.op, landed[hop.unit_of_pair])
    finished = one_after_another(layer)
    back = layer.p.push_order
    gathers, tiles = hop.gather(layer.issuers("combine"), back)
    layer.wait_first(Batch(op=gathers, node=layer.p.gpu[back]), finished)
    layer.wait_tiles(hop.give_back(), tiles)


def _copy_per_expert(layer: LayerBuilder, options: Any = None) -> None:
    """Dispatch, one GEMM after the other, Combine. Every (token, expert) travels as a separate row in both operators."""
    layer.dispatch_rows()
    finished = one_after_another(layer)
    layer.wait_first(layer.combine_rows(Discipline.PROGRAM_ORDER), finished)


USUAL = {"one_copy_per_gpu": copy_per_gpu, "one_copy_per_expert": _copy_per_expert}
"""`Moves.sent` -> the paper form of a system that declares no other."""


ROWS = ("rows", "fp8", "mxfp8")
"""Row formats that Dispatch may send: the model's rows, DeepEP's FP8 rows, Mega MoE's FP8 rows."""
WIRE = (*ROWS, "fp8-ue8m0", "nvfp4")
"""Those that a switch multicasts as bits."""
ROW_STEP = 16  # the rows of a partial tile are rounded up to a multiple of this
TILE_ROWS = ((8.5, 16), (16.5, 32), (32.5, 64), (64.5, 96), (96.5, 128), (np.inf, 192))
"""(largest number of expected rows per expert, rows of a tile): block configurations of Mega MoE in DeepGEMM."""
HOPPER_STEP = 64  # rows of an operation of Hopper's tensor cores
HOPPER_ROWS = ((64.5, 64), (np.inf, 128))
"""As `TILE_ROWS`, of the kernel for Hopper (DeepGEMM csrc/jit_kernels/heuristics/sm90_mega_moe.hpp: 64 or 128 rows)."""


def tile_rows(rows_per_expert: float, arch: str = "blackwell") -> int:
    """Rows of the kernel's tiles, for experts with `rows_per_expert` expected rows."""
    heights = TILE_ROWS if arch == "blackwell" else HOPPER_ROWS
    return next(rows for most, rows in heights if rows_per_expert <= most)


def _fused_tiling(system: str, layer: Layer, weights: str, dtype: str | None) -> Tiling:
    """Tiles of a fused kernel that reads weights in the format `weights`, an option of `system`.

    On a paper cluster every system has the same tiles.
    """
    cluster, routing = layer.cluster, layer.routing
    check(f"{system}.weights", weights, WEIGHT_BYTES)
    if not cluster.gpu:
        return Tiling(choice_int("gemm.tile_rows"), None, WEIGHT_BYTES[weights], dtype)
    arch = cluster.own_gpu.arch
    high = tile_rows(routing.n_tokens * routing.topk / routing.n_experts, arch)
    step, fitted = ROW_STEP if arch == "blackwell" else HOPPER_STEP, cluster.fitted
    return Tiling(high, step, WEIGHT_BYTES[weights], dtype, fitted["fused.rate"], fitted["fused.tile_us"])


def begun(name: str, facts: Facts, layer: Layer, options: Any, kind: type[LayerBuilder] = LayerBuilder, **more: Any) -> LayerBuilder:
    """The builder of `layer` for the system `name`: rows, results and weights in the formats of its `options`, GEMMs unless `compute` is False.

    One kernel (`Facts.is_one_kernel`) has tiles of a fused kernel, other systems those of a GEMM library. `kind`, `more`: another builder, and its
    further keywords. Raises ConfigError for a format that the system does not have.
    """
    chosen: ByName = {"dispatch": "rows", "combine": "rows", "sums": "rows", "compute": True, "weights": "", "al_misses": 0, "gemms": ""}
    chosen = {option: getattr(options, option, usual) for option, usual in chosen.items()}
    dispatch, weights = chosen["dispatch"], chosen["weights"]
    sent = row_bytes(f"{name}.dispatch", dispatch, facts.moves.formats, layer.model)
    back = row_bytes(f"{name}.combine", chosen["combine"], facts.moves.results, layer.model)
    if facts.is_one_kernel(chosen):
        more.setdefault("tiling", _fused_tiling(name, layer, weights or "model", "fp4" if dispatch == weights == "nvfp4" else None))
    elif weights:
        check(f"{name}.weights", weights, WEIGHT_BYTES)
        more["tiling"] = Tiling(choice_int("gemm.tile_rows"), None, WEIGHT_BYTES[weights])
    whole = layer.model, layer.cluster, layer.routing, layer.direction
    builder = kind(*whole, compute=chosen["compute"], sent_bytes=sent, back_bytes=back, **more)
    builder.al_misses, builder.name, builder.options = chosen["al_misses"], name, options
    if hasattr(options, "sums"):
        builder.converted = chosen["combine"], chosen["sums"]
        builder.sum_bytes = row_bytes(f"{name}.sums", chosen["sums"], facts.moves.results, layer.model)
    return builder


COUNT_BYTES = 4  # rows of an expert


def mediate(layer: LayerBuilder, *, counts: bool, permutes: bool, first: Sequence[Batch] = (), rows: bool = True) -> None:
    """Let Dispatch of `layer` wait for mediation, and end the pass with the permutation of the results.

    `counts`: the GPUs exchange rows per expert, and the host waits for these counts (a backward pass knows the counts).
    `permutes`: a kernel sorts the rows by expert before Dispatch, and another one puts the results back after Combine.
    `first`: ops that wait besides the transfers of rows. `rows` False: the transfers do not depend on the routing and do not wait.
    """
    counted = layer.exchange(COUNT_BYTES * layer.model.n_experts, name="counts") if counts and layer.direction == "fwd" else None
    waits = ns_to_ps(choice_int("mediation.host_sync_ns") + choice_int("mediation.launch_ns")) if counted is not None else 0
    sent = layer.counted(layer.p.row_source)
    begin = layer.delay("mediation", waits + (_permute_ps(sent * layer.sent_bytes) if permutes else np.zeros(layer.n_gpus, np.int64)))
    layer.wait_tiles(begin, counted)
    for batch in (*(layer.dispatched if rows else ()), *first):
        layer.wait_each(batch.op, begin[batch.node])
    if permutes:
        end = layer.delay("unpermute", _permute_ps(sent * layer.back_bytes))
        for back in layer.returned:
            layer.wait_tiles(end, back.tile)


def sorted_at_receiver(layer: LayerBuilder) -> I32:
    """`[gpus]` DELAYs after which received rows are sorted by expert: one permutation behind the last row."""
    received = layer.counted(layer.p.row_gpu)
    several = layer.routing.placement.slots_per_gpu > 1
    sort = layer.delay("sort", _permute_ps(received * layer.sent_bytes) if several else 0)
    layer.wait_each(sort, layer.rows_here())
    return sort


def _permute_ps(n_bytes: I64) -> I64:
    """Picoseconds of a kernel that reads `n_bytes` and writes as many, with its launch."""
    rate = 1000 * choice_int("mediation.permute_gbps")  # bytes per microsecond
    moved: I64 = -(-2 * n_bytes.astype(np.int64) * PS_PER_US // rate)
    return ns_to_ps(choice_int("mediation.launch_ns")) + moved
