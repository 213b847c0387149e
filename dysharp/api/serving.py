"""`serve`: which layout of a model serves users best on a machine, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dysharp.errors import ConfigError
from dysharp.serving.answers import WORDS, limit_of, part_shares, point_dict
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.formats import formats_of
from dysharp.serving.layout import ServeLayout, serve_layout_of
from dysharp.serving.rates import rates_of
from dysharp.serving.search import Rejected, ServePoint, front, search, within
from dysharp.serving.work import Load, Replica
from dysharp.specs import Cluster, load_cluster, load_whole
from dysharp.specs.whole import WholeModel

TTFT_MS, TPOT_MS = 2000.0, 50.0
"""Limits where none are given."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of the mean times, in milliseconds."""

    ttft: float = TTFT_MS
    tpot: float = TPOT_MS


@dataclass(frozen=True, slots=True)
class Serving:
    """The answer of `serve`. `best`: the best points within the limits, one per layout; `front`: points that no other beats."""

    model: str
    cluster: str
    gpus: int
    engine: Engine
    slo: Slo
    users: int | None
    best: tuple[ServePoint, ...]
    front: tuple[ServePoint, ...]
    points: tuple[ServePoint, ...]
    rejected: tuple[Rejected, ...]
    header: tuple[str, ...]

    @property
    def gpus_for_users(self) -> int | None:
        """GPUs that `users` users need with the best layout."""
        if self.users is None or not self.best:
            return None
        point = self.best[0]
        return math.ceil(self.users / point.load.users) * point.replica.layout.gpus

    def sentences(self) -> tuple[str, ...]:
        """The answer, what limits it, and why the next layout loses."""
        limits = f"TPOT of {self.slo.tpot:g} ms and TTFT of {self.slo.ttft:g} ms"
        if not self.best:
            if not self.points:
                return (f"{self.model} does not fit on {self.gpus} GPUs of {self.cluster}: {self.rejected[-1].reason}.",)
            fast = min(self.points, key=lambda p: p.served.tpot)
            return (f"No layout keeps a {limits}: the fastest is {_named(fast)} at {_times(fast)}.",)
        first = self.best[0]
        copies = f"{first.replicas} x " if first.replicas > 1 else ""
        lines = [
            f"{copies}{_named(first)}: {first.tokens_per_gpu:,.0f} tokens/s per GPU with {first.load.users:g} users per replica, {_times(first)}.",
            f"{WORDS[limit_of(first)]}.",
        ]
        if len(self.best) > 1:
            second = self.best[1]
            behind = 100 * (1 - second.tokens_per_gpu / first.tokens_per_gpu)
            lines.append(f"Next: {_named(second)}, {behind:.0f} % behind; {WORDS[limit_of(second)]}.")
        if self.gpus_for_users is not None:
            lines.append(f"{self.users:,} users need {self.gpus_for_users} GPUs of this layout.")
        return tuple(lines)

    def launch(self) -> str:
        """Arguments of the engine for the best layout; "" without one."""
        if not self.best:
            return ""
        point, layout = self.best[0], self.best[0].replica.layout
        flag = self.engine.ep_flag.format(ep=layout.ep) if layout.ep > 1 else ""
        return self.engine.launch.format(
            model=self.model, tp=layout.tp, dp=layout.dp, ep=layout.ep, gpus=layout.gpus, ep_flag=flag, batch=math.ceil(point.load.users)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. Times in milliseconds."""
        return {
            "model": self.model, "cluster": self.cluster, "gpus": self.gpus, "engine": self.engine.name,
            "slo": {"ttft_ms": self.slo.ttft, "tpot_ms": self.slo.tpot}, "users": self.users, "gpus_for_users": self.gpus_for_users,
            "sentences": list(self.sentences()), "launch": self.launch(),
            "best": [point_dict(point) for point in self.best], "front": [point_dict(point) for point in self.front],
            "rejected": [{"layout": one.layout.name, "reason": one.reason} for one in self.rejected], "header": list(self.header),
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(self.sentences())


def _named(point: ServePoint) -> str:
    system = f" with {point.system}" if point.system else ""
    return point.replica.layout.name + system


def _times(point: ServePoint) -> str:
    return f"TPOT {point.served.tpot / 1e3:.1f} ms, TTFT {point.served.ttft / 1e3:,.0f} ms"


def serve(
    model: str | WholeModel = "deepseek-v3",
    cluster: str | Cluster = "hw-dgx-h200",
    *,
    gpus: int | None = None,
    isl: int = 4096,
    osl: int = 1024,
    engine: str = "vllm",
    precision: str | None = None,
    kv: str | None = None,
    slo: Slo | None = None,
    users: int | None = None,
    layouts: Iterable[str | ServeLayout] | None = None,
    ep_system: str = "",
    mtp: int = 0,
    acceptance: float = 0.8,
    tick: Callable[[str], None] = lambda _: None,
) -> Serving:
    """Search the layouts of `model` on `gpus` GPUs of `cluster` (default: all) for prompts of `isl` and answers of `osl` tokens.

    | argument | meaning |
    |---|---|
    | `precision` | of the weights (`serving.formats.PRECISIONS`); default FP8 where the model's experts are FP8, else BF16 |
    | `kv` | type of cached values; default the engine's |
    | `slo` | limits of mean TTFT and TPOT |
    | `users` | also how many GPUs serve so many |
    | `layouts` | only these |
    | `ep_system` | EP kernels |
    | `mtp`, `acceptance` | drafts of a step and request; the part of drafts that is accepted if those before it were |

    Raises ConfigError for wrong input.
    """
    whole, rules = model if isinstance(model, WholeModel) else load_whole(model), engine_of(engine)
    machine = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    count = gpus or machine.n_gpus
    machine = machine.with_gpus(count)
    for name, value, least in (("isl", isl, 1), ("osl", osl, 2), ("users", 1 if users is None else users, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 24:
            raise ConfigError(f"serve: {name}: found {value!r}, expected a whole number of at least {least}")
    name = precision or ("fp8" if whole.layer is not None and whole.layer.gemm_dtype == "fp8" else "bf16")
    formats = formats_of(name, kv or (rules.kv if name != "bf16" else "bf16"))
    start = Replica(whole, formats, ServeLayout(), rates_of(machine), ep_system)
    wanted = None if layouts is None else [one if isinstance(one, ServeLayout) else serve_layout_of(one) for one in layouts]
    if not 0 <= mtp <= 8 or not 0 < acceptance < 1:
        raise ConfigError(f"serve: mtp: found {mtp} drafts and acceptance {acceptance}, expected 0 to 8 drafts and an acceptance between 0 and 1")
    accepted = sum(acceptance**n for n in range(mtp + 1))
    points, rejected = search(start, rules, Load(1.0, float(isl), float(osl), accepted, mtp), count, wanted, tick)
    limits = slo or Slo()
    best = within(points, limits.ttft * 1e3, limits.tpot * 1e3)
    header = (
        f"{whole.name} ({name} weights, {formats.kv} KV) on {count} GPUs of {machine.name} under {engine}; prompts of {isl}, answers of {osl} tokens",
        "steady state of a fixed number of users; experts chosen by popularity, no prefix cache; "
        + (f"{mtp} drafts, {accepted:.2f} tokens a step" if mtp else "no speculation"),
    )
    return Serving(
        whole.name, machine.name, count, rules, limits, users, tuple(best), tuple(front(points)), tuple(points), tuple(rejected), header
    )  # fmt: skip


def slo_of(text: str) -> Slo:
    """Limits from text such as "ttft=2s,tpot=50ms". Raises ConfigError."""
    slo = Slo()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = part.partition("=")
        unit = next((u for u in ("ms", "us", "s") if value.endswith(u)), "")
        try:
            number = float(value.removesuffix(unit)) * {"ms": 1.0, "us": 1e-3, "s": 1e3}[unit]
        except (ValueError, KeyError):
            number = math.nan
        if key not in ("ttft", "tpot") or not 0 < number < math.inf:
            raise ConfigError(f"slo: found {part!r}, expected ttft=TIME or tpot=TIME with a unit, such as ttft=2s or tpot=50ms")
        slo = replace(slo, **{key: number})
    return slo


__all__ = ["Serving", "Slo", "part_shares", "serve", "slo_of"]
