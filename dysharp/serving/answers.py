"""What a point of `search` says: where the time of its decode step goes, what limits it, and its plain values."""

from typing import Any

from dysharp.serving.search import ServePoint

GROUPS = {
    "experts": ("experts", "shared experts"),
    "attention": ("attention decode", "absorbed projections"),
    "projections": ("qkv", "attention out", "q and kv down", "q up", "dense FFN", "head"),
    "communication": ("attention all-reduce", "FFN all-reduce", "dispatch", "combine", "embedding", "stage to stage"),
    "small kernels": ("norms", "latent norms", "rope and cache", "router", "sampling"),
}
"""Part of a step -> names of `StepTime.parts`."""
WORDS = {
    "memory": "the KV cache (no more requests fit)",
    "prompts": "prompts, which take most of the time from decoding requests",
    "experts": "reading and multiplying experts",
    "attention": "reading the KV cache",
    "projections": "reading and multiplying weights outside the experts",
    "communication": "communication",
    "small kernels": "small kernels and gaps between kernels",
}
"""Limit -> how a sentence names it."""
HELPS = {
    "memory": "an FP8 cache, more memory, or a layout that splits weights further would fit more",
    "prompts": "prefill apart, shorter prompts or a prefix cache would help",
    "experts": "more users per replica (each expert read serves more rows) or narrower weights would help",
    "attention": "an FP8 cache, shorter contexts or drafts would help",
    "projections": "more users per replica, or more GPUs that share heads, would help",
    "communication": "a larger NVLink domain, a faster EP system or two-batch overlap would help",
    "small kernels": "more users per replica, or kernels that are fused, would help",
}
"""Limit -> what would help."""
HALF = 0.5


def part_shares(point: ServePoint) -> dict[str, float]:
    """Shares of the decode step by group of `GROUPS`; they add up to 1. Gaps between kernels count as small kernels."""
    step = point.step()
    sums = {name: sum(step.parts.get(part, 0.0) for part in parts) for name, parts in GROUPS.items()}
    sums["small kernels"] += step.gaps
    total = sum(sums.values())
    return {name: us / total for name, us in sums.items()}


def limit_of(point: ServePoint) -> str:
    """What keeps the point from more tokens per second: a name of `WORDS`."""
    if point.served.prompt_share > HALF:
        return "prompts"
    if point.served.batch >= 0.95 * point.memory.requests:
        return "memory"
    shares = part_shares(point)
    return max(shares, key=lambda name: shares[name])


def words_of(point: ServePoint) -> str:
    """What limits the point, in words; a dense model has no experts."""
    words = WORDS[limit_of(point)]
    return words if point.replica.model.layer is not None else words.replace(" outside the experts", "")


def point_dict(point: ServePoint) -> dict[str, Any]:
    """Plain values for JSON. Times in milliseconds, memory in GB."""
    served, memory, layout = point.served, point.memory, point.replica.layout
    return {
        "layout": layout.name, "tp": layout.tp, "dp": layout.dp, "ep": layout.ep, "pp": layout.pp, "replicas": point.replicas,
        "ep_system": point.system, "users": point.load.users, "tokens_per_s_gpu": point.tokens_per_gpu, "tokens_per_s_user": point.per_user,
        "tpot_ms": served.tpot / 1e3, "ttft_ms": served.ttft / 1e3, "batch": served.batch, "prompt_share": served.prompt_share,
        "requests_per_s": served.rate, "limit": limit_of(point), "shares": part_shares(point),
        "memory_gb": {"weights": memory.weights / 1e9, "buffers": memory.buffers / 1e9, "kv": memory.free / 1e9, "request": memory.request / 1e9},
        "most_requests": memory.requests,
    }  # fmt: skip
