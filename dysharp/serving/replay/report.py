"""`Replay`: what came of requests: percentiles, goodput, hits, the queue over time. Warm-up and drain are apart from what is measured."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dysharp.base.values import frozen

if TYPE_CHECKING:
    from dysharp.serving.replay.gaps import Gaps
    from dysharp.serving.replay.requests import Requests
    from dysharp.serving.replay.scheduler import Group, Job

WARM_UP = 0.1
"""Part of the requests, in order of arrival, that only fill the replicas."""
FEW = 20
"""With fewer requests all are measured."""
SAMPLES = 1024
Column = np.ndarray[Any, np.dtype[np.float64]]


class _Spread(NamedTuple):
    """A quantity over requests or tokens; times in microseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


def _spread_of(values: Column) -> _Spread:
    """Mean and percentiles; zeros without values."""
    return _Spread(float(values.mean()), *np.percentile(values, (50, 90, 99)).tolist()) if len(values) else _Spread(0.0, 0.0, 0.0, 0.0)


def _most_at_once(end: Column, tpot: Column, tokens: Column) -> float:
    """Most tokens in a microsecond that requests made: `tokens` of each up to its `end`, evenly."""
    speed = np.divide(1.0, tpot, out=np.zeros_like(tpot), where=tpot > 0)
    order = np.argsort(np.concatenate([end, end - tokens * tpot]), kind="stable")
    return float(np.cumsum(np.concatenate([-speed, speed])[order]).max(initial=1e-9))


class Timeline:
    """Who waits and who runs over time, in at most `SAMPLES` samples."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int]] = []
        self.every, self.calls = 1, 0

    def add(self, now: float, waiting: int, running: int) -> None:
        """A sample; every second one goes when there are too many."""
        self.calls += 1
        if self.calls % self.every == 0:
            self.rows.append((now, waiting, running))
            if len(self.rows) > SAMPLES:
                self.rows = self.rows[1::2]
                self.every *= 2


@frozen
class Replay:
    """The answer of a run. Times in microseconds, `rate` in requests per second of all replicas, over the measured part.

    | field | holds |
    |---|---|
    | `rate` | of users: requests that end in the window; else measured ones over the longest time: to come, to begin, to be made at full speed |
    | `ttft`, `tpot`, `itl`, `latency` | to the first token; mean time of a token after it; between tokens (bins of 1 %); to the last token |
    | `requests`, `measured`, `refused`, `preemptions` | numbers; refused: longer than the model's context or the memory |
    | `warm_up`, `window`, `drain` | microseconds before, in and behind what is measured |
    | `hit` | part of all prompt tokens whose cache was there; `tiers`: blocks that came from each tier |
    | `queue` | (time, waiting, running) of all replicas |
    """

    name: str
    gpus: int
    requests: int
    measured: int
    refused: int
    preemptions: int
    warm_up: float
    window: float
    drain: float
    rate: float
    output_rate: float
    """Output tokens per second."""
    input_rate: float
    ttft: _Spread
    tpot: _Spread
    itl: _Spread
    latency: _Spread
    hit: float
    tiers: dict[str, int]
    busy: float
    steps: int
    queue: tuple[tuple[float, int, int], ...]
    columns: dict[str, Column]
    """Of requests, in order of their ends: number, arrived, ttft, tpot, end."""

    def keeps(self, ttft: float, tpot: float) -> float:
        """Part of the measured requests within both limits, in microseconds: goodput over rate."""
        inside = self.columns["measured"] > 0
        good = (self.columns["ttft"][inside] <= ttft) & (self.columns["tpot"][inside] <= tpot)
        return float(good.mean()) if len(good) else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. Times in milliseconds."""
        spreads = {name: {key: getattr(getattr(self, name), key) / 1e3 for key in _Spread._fields} for name in ("ttft", "tpot", "itl", "latency")}
        same = ("name", "gpus", "requests", "measured", "refused", "preemptions", "hit", "tiers", "busy", "steps")
        return {name: getattr(self, name) for name in same} | {f"{name}_ms": value for name, value in spreads.items()} | {
            "requests_per_s": self.rate, "output_tokens_per_s": self.output_rate, "input_tokens_per_s": self.input_rate,
            "seconds": {"warm_up": self.warm_up / 1e6, "measured": self.window / 1e6, "drain": self.drain / 1e6},
            "queue": [{"s": at / 1e6, "waiting": waiting, "running": running} for at, waiting, running in self.queue],
        }  # fmt: skip


class Record:
    """What is written down while requests end."""

    def __init__(self) -> None:
        self.rows = {name: array("d") for name in ("number", "arrived", "ttft", "tpot", "later", "end", "times", "inside")}
        self.here = self.steps = self.refused = self.done = 0

    def count(self, now: float, more: int) -> None:
        """Requests come and go."""
        self.here += more
        self.rows["times"].append(now)
        self.rows["inside"].append(self.here)

    def add(self, job: Job) -> None:
        """A request is complete."""
        rows = self.rows
        rows["number"].append(job.index)
        rows["arrived"].append(job.arrived)
        rows["ttft"].append(job.first - job.arrived + job.later)
        rows["tpot"].append((job.end - job.first) / max(1, job.request.output - 1))
        rows["later"].append(job.later)
        rows["end"].append(job.end)

    def report(self, requests: Requests, groups: Sequence[Group], gaps: Gaps, line: Timeline, gpus: int, busy: float) -> Replay:
        """The answer."""
        found = {name: np.array(column) for name, column in self.rows.items()}
        arrived, end, total = found["arrived"], found["end"], float(found["end"].max(initial=0.0))
        order = np.sort(arrived)
        begin, last = (0.0, total) if len(order) < FEW else (float(order[int(WARM_UP * len(order))]), float(order[-1]))
        if last <= begin or (requests.users and not begin):  # the users who come first are more than fill the replicas
            begin, last = 0.0, total
        measured = (arrived >= begin) & (arrived <= last)
        found["measured"] = measured.astype(float)
        window = max(last - begin, 1e-9)
        counted, during = (end > begin) & (end <= last), window
        outputs, prompts = (np.array([getattr(row, name) for row in requests.rows]) for name in ("output", "prompt"))
        behind = outputs[found["number"].astype(int)] - 1  # tokens behind the first
        if not requests.users and last < total:  # replicas fill for longer than the warm-up of a short run
            begun = (arrived + found["ttft"])[measured].max() - found["ttft"][measured].min()
            made = behind[measured].sum() / _most_at_once(end, found["tpot"], behind)
            counted, during = measured, max(window, float(begun) - begin, float(made))
        numbers = found["number"][counted].astype(int)
        later, several = end - arrived + found["later"], measured & (behind > 0)
        tiers: dict[str, int] = {}
        for tier in (one for group in groups for one in group.cache.tiers):
            tiers[tier.name] = tiers.get(tier.name, 0) + tier.hits
        between = _Spread(gaps.sum / max(1, gaps.n), *(gaps.at(part) for part in (0.5, 0.9, 0.99)))
        hit, asked = sum(group.hit for group in groups), sum(group.asked for group in groups)
        per_s = 1e6 / during
        return Replay(
            requests.name, gpus, len(requests.rows), int(measured.sum()), self.refused, sum(group.preemptions for group in groups),
            begin, window, total - last, len(numbers) * per_s, float(outputs[numbers].sum()) * per_s, float(prompts[numbers].sum()) * per_s,
            _spread_of(found["ttft"][measured]), _spread_of(found["tpot"][several]), between,
            _spread_of(later[measured]), hit / max(1, asked), tiers, busy / total if total else 0.0, self.steps, tuple(line.rows), found,
        )  # fmt: skip
