"""EP systems as closed forms: rows on the wire and their time.

`domain` GPUs share fast links; e domains hold an EP group. Rows per token between domains are those of the Pangu Ultra digest: flat k(e-1)/e,
hierarchical e-1 (an all-gather), dedup e(1-(1-1/e)^k)(e-1)/e.
"""

import math
from dataclasses import replace

from dysharp.specs.whole import WholeModel
from dysharp.steps.cost import Cost
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine

ELEMENT = 2


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


def wire_us(machine: Machine, layout: Layout, model: WholeModel, tokens: float, system: str) -> float:
    """One dispatch or combine of `tokens` tokens of a rank."""
    layer, size = model.layer, layout.ep * layout.etp
    assert layer is not None
    if size <= 1:
        return 0.0
    row, k = ELEMENT * layer.hidden * tokens, layer.topk * layout.etp
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


def hidden_by(exchange: Cost, experts: Cost) -> Cost:
    """An exchange whose rows are computed as they arrive: only what lasts longer than the experts is exposed."""
    ahead = max(0.0, exchange.forward - experts.forward)
    behind = max(0.0, exchange.backward - experts.backward - experts.weights)
    return replace(exchange, forward=ahead, backward=behind, forward_exposed=ahead, backward_exposed=behind)
