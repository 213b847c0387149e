"""Tables of `Serving`, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterable

from dysharp.api.serving_answer import Serving
from dysharp.measured.serving.error_bar import bar_of
from dysharp.serving.answers import limit_of
from dysharp.serving.search import ServePoint

POINT_HEADINGS = (
    "layout", "EP system", "users", "tokens/s\nper GPU", "tokens/s\nper user", "TPOT\nms", "90 % of\nruns, ms", "TTFT\nms", "prompts\n%", "limit",
)  # fmt: skip
SYSTEM_HEADINGS = (
    "EP system", "form", "MoE layer\nus", "closed form\nus", "whole layer,\nmerged us", "closed form\nus", "merged over\nclosed, %", "TPOT\nms",
)  # fmt: skip
WHAT_IF_HEADINGS = ("changed", "layout", "tokens/s\nper GPU", "gain\n%")


def point_cells(points: Iterable[ServePoint]) -> list[tuple[str, ...]]:
    """One row per point, by `POINT_HEADINGS`."""
    rows: list[tuple[str, ...]] = []
    for p in points:
        low, high = bar_of(p.replica).around(p.served.tpot / 1e3)
        speed = (f"{p.tokens_per_gpu:,.0f}", f"{p.per_user:.1f}", f"{p.served.tpot / 1e3:.1f}", f"{low:.0f} to {high:.0f}")
        rest = (f"{p.served.ttft / 1e3:,.0f}", f"{100 * p.served.prompt_share:.0f}", limit_of(p))
        rows.append((p.replica.layout.name, p.system or "-", f"{p.load.users:g}", *speed, *rest))
    return rows


def what_if_cells(done: Serving) -> list[tuple[str, ...]]:
    """One row per changed machine, by `WHAT_IF_HEADINGS`."""
    now = done.best[0].tokens_per_gpu if done.best else 1.0
    return [
        (one.name, one.point.replica.layout.name if one.point else "-", f"{one.tokens_per_gpu:,.0f}", f"{100 * (one.tokens_per_gpu / now - 1):+.0f}")
        for one in done.what_ifs
    ]


def system_cells(done: Serving) -> list[tuple[str, ...]]:
    """One row per EP system, by `SYSTEM_HEADINGS`."""
    return [
        (one.system, one.form, *(f"{us:,.0f}" for us in (one.layer, one.closed, one.merged, one.closed_whole)),
         f"{100 * (one.merged / one.closed_whole - 1):+.0f}", f"{one.tpot_ms:.1f}")
        for one in done.systems
    ]  # fmt: skip


def memory_line(point: ServePoint) -> str:
    """What a GPU of the point holds."""
    memory = point.memory
    return (
        f"Memory of a GPU: {memory.weights / 1e9:.1f} GB weights, {memory.buffers / 1e9:.1f} GB buffers, {memory.free / 1e9:.1f} GB for KV: "
        f"{memory.requests:,} requests of an attention group."
    )
