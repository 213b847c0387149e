"""`serve --requests`: real or drawn requests replayed on the layouts that the search found, and what came of them in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dysharp.base import ByName, Column, Columns, ConfigError, frozen, show
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.replay.fleet import Failure, Pool, TierSize, replay
from dysharp.serving.replay.report import Replay
from dysharp.serving.replay.requests import Requests
from dysharp.serving.search import ServePoint

if TYPE_CHECKING:
    from dysharp.api.arguments import ServeArgs, Slo
    from dysharp.serving.engine import Engine
    from dysharp.serving.work import Replica

HOUR = 3600


@frozen
class Replayed:
    """One layout under the requests. `price`: dollars per GPU hour; 0: not asked."""

    layout: str
    run: Replay
    slo: Slo
    price: float = 0.0

    @property
    def _inside(self) -> float:
        """Part of the measured requests within both limits."""
        return self.run.keeps(self.slo.ttft * 1e3, self.slo.tpot * 1e3)

    @property
    def kept(self) -> float:
        """The same of all requests: those that are refused or never end keep none."""
        return self._inside * len(self.run.columns["end"]) / self.run.requests

    @property
    def goodput(self) -> float:
        """Requests a second within both limits."""
        return self._inside * self.run.rate

    @property
    def per_million(self) -> float | None:
        """Dollars per million output tokens; None without a price."""
        return self.price * self.run.gpus / HOUR / self.run.output_rate * 1e6 if self.price and self.run.output_rate else None

    def sentences(self) -> Iterator[str]:
        """What came of the requests."""
        run, slo = self.run, self.slo
        lost, limits = run.requests - run.refused - len(run.columns["end"]), f"TTFT of {slo.ttft:g} ms and TPOT of {slo.tpot:g} ms"
        count = f"{run.measured:,} measured requests of {run.requests:,} ({run.name})"
        if lost or run.refused:
            count = f"{run.requests:,} requests ({run.name}; {self._inside:.1%} of {run.measured:,} measured ones that end)"
        yield (
            f"Replay, {self.layout}: {self.kept:.1%} of {count} keep a {limits}: {self.goodput:.2f} of {run.rate:.2f} requests/s, "
            f"{run.output_rate / run.gpus:,.0f} output tokens/s per GPU."
        )
        worst = f"P99: TTFT {run.ttft.p99 / 1e3:,.0f} ms, TPOT {run.tpot.p99 / 1e3:.1f} ms, between tokens {run.itl.p99 / 1e3:.1f} ms"
        yield f"{worst}, end to end {run.latency.p99 / 1e6:.1f} s; busy {run.busy:.0%} of the time."
        more = [f"{run.hit:.1%} of prompt tokens were cached"] if run.hit else []
        more += [f"{blocks:,} blocks came from {name}" for name, blocks in run.tiers.items()]
        more += [f"{run.preemptions:,} preemptions"] if run.preemptions else []
        more += [f"{run.refused:,} requests refused: longer than context or cache"] if run.refused else []
        more += [f"{lost:,} requests never end: no replica is up"] if lost else []
        more += [f"${self.per_million:.2f} per million output tokens"] if self.per_million is not None else []
        if more:
            yield f"{'; '.join(more)[:1].upper()}{'; '.join(more)[1:]}."

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        own = {"layout": self.layout, "kept": self.kept, "goodput_requests_per_s": self.goodput, "usd_per_million_output_tokens": self.per_million}
        return own | self.run.to_dict()


def _ms(name: str, part: str) -> Column:
    heading = f"{name.upper()} {part}\nms" if name != "latency" else f"end to end\n{part}, s"
    return Column(f"{name}_{part}", heading, ",.0f" if name == "ttft" else ".1f", lambda one: getattr(getattr(one.run, name), part),
                  per=1e6 if name == "latency" else 1e3)  # fmt: skip


REPLAYS = Columns(
    "layout=layout", "kept\n%=kept:.0%", "requests/s\nwithin limits=goodput:.2f",
    Column("rate", "output tokens/s\nper GPU", ",.0f", lambda one: one.run.output_rate / one.run.gpus),
    *(_ms(name, part) for name in ("ttft", "tpot", "itl") for part in ("p50", "p99")), _ms("latency", "p90"),
)  # fmt: skip


def replays(
    points: Iterable[ServePoint], start: Replica, engine: Engine, gpus: int, requests: Requests, slo: Slo, asked: ServeArgs,
    tick: Callable[[str], None], prefixes: bool = True,
) -> tuple[Replayed, ...]:  # fmt: skip
    """The requests on replicas of each point that fill the GPUs; with `pools` on those alone. `prefixes`: they are cached. Raises ConfigError."""
    acceptance = (asked["acceptance"],) * (asked["mtp"] or 0)
    tiers, failures = _tiers_of(asked["tiers"] or ""), _failures_of(asked["fail"] or "")

    def run(name: str, pool: Pool, prefill: Pool | None = None) -> Replayed:
        done = replay(
            pool, engine, requests, router=asked["router"], prefill=prefill, acceptance=acceptance, tiers=tiers, failures=failures,
            prefix_cache=prefixes, tick=lambda count, of: tick(f"{name}: {count:,} of {of:,} requests"),
        )  # fmt: skip
        return Replayed(name, done, slo, asked["price"])

    if asked["pools"]:
        pools = _pools_of(asked["pools"], start)
        if (size := sum(pool.gpus for pool in pools)) > gpus:
            raise ConfigError(f"pools: found {size} GPUs in {asked['pools']}, expected at most {gpus}")
        return (run(" + ".join(f"{one.number} x {one.replica.layout.name}" for one in pools), pools[1], pools[0]),)
    counted = [(point, Pool(point.replica, gpus // point.replica.layout.gpus)) for point in points]
    return tuple(run(f"{pool.number} x {point.replica.layout.name}", pool) for point, pool in counted)


_NUMBER = r"(?=[\d.]*[1-9])(\d+(?:\.\d+)?)"
"""A number above 0."""


def _read(name: str, text: str, between: str, pattern: str, expected: str) -> list[re.Match[str]]:
    found = [re.fullmatch(pattern, part.strip()) for part in text.split(between) if text]
    matches = [one for one in found if one]
    if len(matches) < len(found):
        raise ConfigError(f"{name}: found {show(text)}, expected {expected}")
    return matches


def _pools_of(text: str, start: Replica) -> tuple[Pool, Pool]:
    """Prefill and decode workers of "2:tp=4;1:dp=8,ep=8". Raises ConfigError."""
    expected = "N:LAYOUT;N:LAYOUT (prefill;decode), such as 2:tp=4;1:dp=8,ep=8"
    pools = [Pool(replace(start, layout=serve_layout_of(one[2])), int(one[1])) for one in _read("pools", text, ";", r"([1-9]\d{0,3}):(.+)", expected)]
    for one in (pool.replica for pool in pools):
        if faults := one.layout.conflicts(one.model, one.machine.cluster.n_gpus, one.machine.domain):
            raise ConfigError(f"pools: {one.layout.name}: {faults[0]}")
    if len(pools) != 2:
        raise ConfigError(f"pools: found {show(text)}, expected {expected}")
    return pools[0], pools[1]


def _tiers_of(text: str) -> Sequence[TierSize]:
    """Tiers below the GPU's cache of "host=200@50,disk=2000@6": GB of a GPU and GB/s. Raises ConfigError."""
    found = _read("tiers", text, ",", rf"(\w+)={_NUMBER}@{_NUMBER}", "NAME=GB@GBps,... of a GPU, such as host=200@50,disk=2000@6")
    return [TierSize(one[1], float(one[2]), float(one[3])) for one in found]


def _failures_of(text: str) -> Sequence[Failure]:
    """Failures of "0@60" or "0@60+30": replica, seconds, and for how long. Raises ConfigError."""
    found = _read("fail", text, ",", rf"(\d+)@{_NUMBER}(?:\+{_NUMBER})?", "REPLICA@SECONDS or REPLICA@SECONDS+LASTS, such as 0@60+30")
    return [Failure(int(one[1]), float(one[2]), float(one[3] or "inf")) for one in found]
