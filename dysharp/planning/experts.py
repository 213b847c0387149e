"""Routed experts under an EP system as closed forms: rows on the wire, their time, and the experts' GEMMs.

`domain` GPUs share fast links; e domains hold an EP group. Rows per token between domains are those of the Pangu Ultra digest: flat k(e-1)/e,
hierarchical e-1 (an all-gather), dedup e(1-(1-1/e)^k)(e-1)/e.
"""

import math

from dysharp.specs.whole import WholeModel
from dysharp.steps.cost import EpTimes
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine

ELEMENT = 2
TILE = 128
"""Rows of a tile of a grouped GEMM: each expert's rows are padded to it."""


def copies(system: str, groups: int, topk: int) -> float:
    """Rows per token that leave for other groups (domains, or GPUs), with experts drawn evenly."""
    if groups <= 1:
        return 0.0
    apart = (groups - 1) / groups
    if system == "flat":
        return topk * apart
    if system == "hierarchical":
        return float(groups - 1)
    return groups * (1 - (1 - 1 / groups) ** topk) * apart


def wire_us(machine: Machine, layout: Layout, model: WholeModel, tokens: float, system: str, imbalance: float) -> float:
    """One dispatch or combine of `tokens` tokens of a rank. The most loaded rank receives `imbalance` times the mean."""
    layer, size = model.layer, layout.ep * layout.etp
    assert layer is not None
    if size <= 1:
        return 0.0
    row, k = ELEMENT * layer.hidden * tokens * imbalance, layer.topk * layout.etp
    inside = min(size, machine.domain)
    domains = math.ceil(size / machine.domain)
    start = 2e-6 * machine.cluster.link_latency_ps + (machine.hop if domains > 1 else 0.0)
    if system == "hierarchical":  # all-gather between domains, then an all-to-all inside
        return start + row * copies(system, domains, k) / machine.nic + row * k * (inside - 1) / inside / machine.link
    if system in ("in-switch", "moe-hub"):  # a switch copies and sums: one direction carries a row per token, the other the distinct rows
        far = copies("dedup", domains, k) / machine.nic
        rows = copies("dedup", inside, k) if system == "in-switch" else k * (inside - 1) / inside
        return start + row * max(far, rows / machine.link)
    far = copies(system, domains, k) / machine.nic
    near = copies(system, inside, k) * (domains if system == "dedup" else 1)
    near = min(near, k * (inside - 1) / inside)
    return start + row * max(far, near / machine.link)


def experts_us(machine: Machine, layout: Layout, model: WholeModel, tokens: float, imbalance: float) -> float:
    """Forward GEMMs of a rank's experts: rows in whole tiles at the rate of large GEMMs, or its weights through memory."""
    layer = model.layer
    assert layer is not None
    local = layer.n_experts / layout.ep
    rows = tokens * layer.topk * layout.etp * imbalance / local
    padded = math.ceil(rows / TILE) * TILE * local
    inner = layer.expert_hidden / layout.etp
    flops = 2 * padded * layer.hidden * inner * layer.n_matrices
    weights = local * layer.hidden * inner * layer.n_matrices * (1 if layer.gemm_dtype == "fp8" else ELEMENT)
    passes = ELEMENT * rows * local * (4 * layer.hidden + 5 * inner)  # two permutations, the activation
    return max(machine.flops(flops, layer.gemm_dtype), weights / machine.cluster.hbm_bytes_per_us) + machine.memory(passes)


def ep_times(machine: Machine, layout: Layout, model: WholeModel, sequence: int, system: str, imbalance: float) -> EpTimes:
    """One MoE layer, forward and backward. `moe-hub` runs experts beside the rows that arrive; the others one behind the other."""
    tokens = layout.tokens(sequence) / layout.tp
    wire = wire_us(machine, layout, model, tokens, system, imbalance)
    work = experts_us(machine, layout, model, tokens, imbalance)
    hidden = 1.0 if system == "moe-hub" else 0.0
    exposed = max(0.0, 2 * wire - hidden * work)
    behind = max(0.0, 2 * wire - hidden * 2 * work)
    return EpTimes(work + exposed, 2 * work + behind, exposed, behind, 2 * wire, 2 * wire)
