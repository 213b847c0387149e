"""What a point of `search` says: where the time of its decode step goes, what limits it, its plain values, and what a user can change: two
batches that overlap, speculative decoding, spare expert slots. Each result says whether the change pays at this scenario.
"""

from dataclasses import replace
from pathlib import Path

from dysharp.base import Amounts, ByName, frozen, read_toml
from dysharp.serving.balance import EXTRA_SLOTS, Rearranging, rearranging, with_slots
from dysharp.serving.search import ServePoint
from dysharp.serving.step import StepTime, decode_batch, step_time
from dysharp.serving.two_batches import overlapped_us

LIMITS = read_toml(Path(__file__).parent / "data" / "limits.toml")
"""Limit -> `parts` of a step, `words` that name it, and what `helps`."""
HALF = 0.5
FULL = 0.95
"""Share of the time from which a server is taken as the limit."""


def part_shares(point: ServePoint, step: StepTime | None = None) -> Amounts:
    """Shares of the decode step by limit; they add up to 1. Gaps between kernels count as small kernels; `host`: the GPU waits for the engine."""
    step = step or point.step()
    sums = {name: sum(step.parts.get(part, 0.0) for part in parts) for name, limit in LIMITS.items() if (parts := limit.get("parts"))}
    sums["small kernels"] += step.gaps
    part = point.replica.stage_part
    sums["host"] = point.table.engine.step_us(point.replica, part * step.device, point.stage_batch.decodes) / part - step.device
    total = sum(sums.values())
    return {name: us / total for name, us in sums.items()}


def limit_of(point: ServePoint) -> str:
    """What keeps the point from more tokens per second: a name of `LIMITS`."""
    text = point.table.engine.token_us * point.scenario.isl
    if point.served.rate * text > FULL * 1e6:
        return "text"
    if point.served.prompt_share > HALF:
        return "prompts"
    if point.scenario.concurrency >= point.memory.requests * point.replica.layout.dp:
        return "memory"
    step, engine, replica = point.step(), point.table.engine, point.replica
    if engine.overlaps and engine.host_us(replica, point.stage_batch.decodes) > replica.stage_part * step.device:
        return "host"
    shares = part_shares(point, step)
    return max(shares, key=lambda name: shares[name])


def words_of(point: ServePoint) -> str:
    """What limits the point, in words; a dense model has no experts."""
    words = str(LIMITS[limit_of(point)]["words"])
    return words if point.replica.model.layer is not None else words.replace(" outside the experts", "")


def point_dict(point: ServePoint) -> ByName:
    """Plain values for JSON. Times in milliseconds, memory in GB."""
    served, memory, layout = point.served, point.memory, point.replica.layout
    return {
        "layout": layout.name, "tp": layout.tp, "dp": layout.dp, "ep": layout.ep, "pp": layout.pp, "replicas": point.replicas,
        "ep_system": point.system, "users": point.scenario.concurrency, "tokens_per_s_gpu": point.tokens_per_gpu, "tokens_per_s_user": point.per_user,
        "tpot_ms": served.tpot / 1e3, "ttft_ms": served.ttft / 1e3, "batch": served.batch, "prompt_share": served.prompt_share,
        "requests_per_s": served.rate, "limit": limit_of(point), "shares": part_shares(point),
        "memory_gb": {"weights": memory.weights / 1e9, "buffers": memory.buffers / 1e9, "kv": memory.free / 1e9, "request": memory.request / 1e9},
        "most_requests": memory.requests,
    }  # fmt: skip


MOST_BATCH = 1 << 10
HALVINGS = 20


@frozen
class Overlap:
    """Two-batch overlap: part of a step's time that it saves at the point (negative: costs), and from how many requests of a group it pays."""

    gain: float
    pays_from: int | None


def overlap_of(point: ServePoint) -> Overlap | None:
    """Two-batch overlap of a point; None without dispatch."""
    layout = point.replica.layout
    if layout.dp == 1 or layout.ep == 1:
        return None
    sizes = [1 << i for i in range(1, MOST_BATCH.bit_length()) if 1 << i <= max(2, point.memory.requests)]
    pays = next((size for size in sizes if _gain(point, float(size)) > 0), None)
    return Overlap(_gain(point, max(2.0, point.served.batch)), pays)


def _gain(point: ServePoint, requests: float) -> float:
    batch = decode_batch(point.scenario, requests, point.replica.layout.dp)
    return step_time(point.replica, batch).device / overlapped_us(point.replica, batch) - 1


def break_even(point: ServePoint, draft_tokens: int) -> float:
    """Acceptance above which `draft_tokens` shorten TPOT: a + ... + a^n must give what the longer step costs. Above 1: never."""
    alone = decode_batch(replace(point.scenario, draft_tokens=0), max(1.0, point.served.batch), point.replica.layout.dp)
    drafted = replace(alone, queries=1 + draft_tokens)
    longer = step_time(point.replica, drafted, drafts=draft_tokens).device / step_time(point.replica, alone).device - 1
    low, high = 0.0, 1.0 + longer
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(1, draft_tokens + 1)) < longer else (low, middle)
    return high


@frozen
class Slots:
    """EPLB with spare slots at a point: output tokens per second of a GPU, with the memory that copies take from the cache."""

    eplb: Rearranging
    tokens_per_gpu: float


def slots_of(point: ServePoint) -> list[Slots]:
    """As the experts lie, then EPLB with 1, 2 and 4 spare slots per GPU, while they fit. [] without recorded loads or without EP."""
    layout, model = point.replica.layout, point.replica.model.layer
    if not point.replica.loads or layout.ep == 1 or model is None:
        return []
    bare = replace(point.replica, layout=replace(layout, slots=-model.n_experts % layout.ep))
    tried = [(0, bare), *((n, with_slots(bare, n)) for n in EXTRA_SLOTS)]
    return [Slots(rearranging(bare, n), moved.tokens_per_gpu) for n, replica in tried if (moved := point.on(replica))]
