"""Queries of whole layers: fused kernels (Mega MoE) and layers put together from parts; and the load of the busiest rank they need."""

from __future__ import annotations

import functools
import re

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.measured import Measurement
from dysharp.analysis.queries import SCALED_FP4, Query, Unsupported, check_quality, copies_of, dtype_of, gpu_of, number, shape_of, us_per_unit

F64 = NDArray[np.float64]
MX_SCALE = 1 / 32  # one 8-bit scale for 32 values (OCP MX)
DEFAULT_SMS = 20  # of the DeepEP library
DRAWS = 24  # of a load distribution; the median over them is what a row is asked for
WEIGHT_BYTES = {"fp4": 0.5 + MX_SCALE, "nvfp4": SCALED_FP4, "mxfp8": 1 + MX_SCALE}
ACT_BYTES = {"fp8": 1 + MX_SCALE, "mxfp8": 1 + MX_SCALE, "nvfp4": SCALED_FP4}


def fused(row: Measurement) -> Query:
    """One kernel per layer (Mega MoE and its variants)."""
    check_quality(row.config)
    gpu = gpu_of(row)
    if row.metric.startswith("speedup"):
        raise Unsupported("a ratio to another system")
    if "MegaMoE" not in row.system:
        raise Unsupported("a tensor-parallel layer: no closed form yet")
    c = row.config
    gpus, experts, topk, tokens = (number(row, key) for key in ("ep", "experts", "topk", "tokens_per_rank"))
    hidden, inter = number(row, "hidden"), number(row, "inter")
    distribution = str(c.get("distribution", "random"))
    rows, touched = busiest_rank(round(gpus), round(experts), round(topk), round(tokens), distribution)
    acts, weights = formats_of(row)
    act, weight = ACT_BYTES[acts], WEIGHT_BYTES[weights]
    combine = hidden * (ACT_BYTES["mxfp8"] if "combine_mxfp8" in row.system else SCALED_FP4 if "combine_nvfp4" in row.system else 2.0)
    numbers = {"rows": rows, "touched": touched, "hidden": hidden, "inter": inter, "gpus": gpus, "dispatch_bytes": act * hidden,
               "combine_bytes": combine, "tokens": tokens}
    flops = 2 * tokens * topk * 3 * hidden * inter / 1e6
    moved = tokens * topk * (act * hidden + combine) / 1e3  # DeepGEMM counts every row, those of the own rank too
    work = {"TFLOPS": flops, "GB/s": moved}.get(row.unit, 0.0)
    words = ("fp4" if acts == "nvfp4" else "fp8", f"{weight:.6f}")
    dtypes = (f"dispatch {'mxfp8' if acts == 'fp8' else acts}", f"weights {weights}")
    return Query("fused_layer", gpu, words, numbers, work, us_per_unit(row), dtypes, shape_of(row, "hidden", "inter", "experts", "topk"))


def formats_of(row: Measurement) -> tuple[str, str]:
    """(activations, weights) of a fused layer."""
    acts = dtype_of(row, "acts", expected=tuple(ACT_BYTES), default="fp8")
    return acts, dtype_of(row, "weights", expected=tuple(WEIGHT_BYTES), default="fp4")


def layer(row: Measurement) -> Query:
    """A layer of separate kernels: DeepEP or NCCL around a grouped MLP."""
    check_quality(row.config)
    c, gpu = row.config, gpu_of(row)
    if row.kind in ("moe_layer0", "moe_layer1"):
        raise Unsupported("a tensor-parallel layer: no closed form yet")
    if "PCIe" in row.hardware:
        raise Unsupported("more than one NVLink domain")
    gpus, experts, topk, tokens, hidden = (number(row, key) for key in ("ep", "experts", "topk", "tokens_per_rank", "hidden"))
    gated = "ffn" not in c
    inter = number(row, "inter" if gated else "ffn")
    groups = number(row, "topk_groups") if "topk_groups" in c else gpus
    copies = copies_of(gpus, experts, topk) if groups >= gpus else copies_of(groups, float(round(experts * groups / gpus)), topk)
    rows, touched = busiest_rank(round(gpus), round(experts), round(topk), round(tokens), "balanced" if not gated else "random")
    numbers = {"rows": rows, "touched": touched, "tokens": tokens, "hidden": hidden, "inter": inter, "gpus": gpus, "experts": experts,
               "topk": topk, "gates": 2.0 if gated else 1.0, "copies": copies,
               "sms": number(row, "moe_comm_sms") if c.get("moe_comm_sms") else float(DEFAULT_SMS)}
    moves = "nccl" if "NCCL" in row.system else "deepep"
    wire = "bf16" if not gated else "fp8"
    compute = dtype_of(row, "dtype", "acts", expected=("fp8", "bf16"))
    dtype_of(row, "weights", expected=(compute,), default=compute)
    return Query("layer", gpu, (moves, wire, compute), numbers, 0.0, us_per_unit(row), (compute,),
                 shape_of(row, "hidden", "inter", "ffn", "experts"))


@functools.cache
def busiest_rank(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> tuple[float, float]:
    """Rows the busiest rank computes and how many of its experts have any, the median of seeded draws.

    `distribution`: "balanced" (round robin) or one of `_loads`.
    """
    rows = gpus * tokens * topk
    if experts % gpus:
        raise Unsupported("experts that the GPUs do not share evenly")
    if distribution == "balanced":
        touched = min(experts, rows) / gpus
        return rows / gpus, float(np.ceil(touched))
    found = _busiest([np.rint(loads) for loads in _draws(gpus, experts, topk, tokens, distribution)], gpus)
    half = sorted(found)[len(found) // 2]
    return half[0], float(np.median([touched for _, touched in found]))


def expert_loads(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> F64:
    """`[experts]` rows, not rounded, of the draw whose busiest rank has the median of rows."""
    drawn = _draws(gpus, experts, topk, tokens, distribution)
    found = _busiest(drawn, gpus)
    return drawn[sorted(range(DRAWS), key=lambda at: found[at])[DRAWS // 2]]


def _draws(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> list[F64]:
    rng = np.random.default_rng(0)
    return [_loads(rng, experts, gpus * tokens * topk, gpus * tokens, distribution) for _ in range(DRAWS)]


def _busiest(drawn: list[F64], gpus: int) -> list[tuple[float, float]]:
    """For each draw the rows of the rank with most, and how many of its experts have any."""
    ranks = [max(loads.reshape(gpus, -1), key=lambda rank: float(rank.sum())) for loads in drawn]
    return [(float(rank.sum()), float((rank > 0).sum())) for rank in ranks]


def _loads(rng: np.random.Generator, experts: int, rows: int, tokens: int, distribution: str) -> F64:
    """"random" (uniform top-k), "power_law_A" or "power_law_sampled_A": expert loads from a bounded power law with exponent A between 1 and 0.8
    times all tokens (0.01 and 2 when there are fewer rows than experts), scaled to all rows, as the collector of protocol P6 draws them.
    """
    if distribution == "random":
        return rng.multinomial(rows, np.full(experts, 1 / experts)).astype(np.float64)
    a = _exponent(distribution)
    low, high = (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    draw = ((high ** (1 - a) - low ** (1 - a)) * rng.random(experts) + low ** (1 - a)) ** (1 / (1 - a))
    return _capped(draw / draw.sum() * rows, float(tokens))


def _exponent(distribution: str) -> float:
    found = re.fullmatch(r"power_law_(?:sampled_)?([0-9]+(?:\.[0-9]+)?)", distribution)
    if found is None or not 0 < float(found[1]) < 10 or float(found[1]) == 1:
        raise Unsupported(f"distribution {distribution[:40]!r}, expected random, balanced, power_law_A or power_law_sampled_A with A not 1")
    return float(found[1])


def _capped(loads: F64, most: float) -> F64:
    """The same total with no load above `most` (a token chooses an expert once); the rest is spread in proportion."""
    total = loads.sum()
    for _ in range(64):
        over = loads >= most
        if not (loads > most).any() or over.all():
            break
        loads = np.where(over, most, loads * (total - most * over.sum()) / max(loads[~over].sum(), 1e-9))
    return loads
