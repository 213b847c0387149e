"""What whole runs say about a machine: named costs, their priors, and the posterior after measurements of steps or of serving.

A cost is a property of hardware or of named software: a rate, a launch, a start. Its prior is log-normal around the value of the base cluster. The
posterior is the nearest normal distribution in logarithms: Gauss-Newton on weighted least squares, where a row far from all others weighs less
(Student's t with 4 degrees of freedom), so that one bad row moves little. Rows are equal votes, so their order changes nothing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from dysharp.base import F64, ByName, f64, frozen
from dysharp.measured.intervals import Interval
from dysharp.specs import Cluster
from dysharp.specs.fitted import KERNELS, constant_of

HOST = "host_factor"
NICS = "scale_out."


@frozen
class Cost:
    """One named cost: a key of cluster files, or a fitted constant. `spread`: standard deviation of its logarithm before any row is seen.

    `far`: some are many spreads off (Student's t, as rows).
    """

    name: str
    spread: float
    meaning: str
    far: bool = False

    def of(self, cluster: Cluster) -> float:
        """Its value on a cluster; 0 where the cluster does not have it."""
        if self.name == HOST:
            return cluster.host_factor
        if self.name.startswith(NICS):
            return float(getattr(cluster.scale_out, self.name.removeprefix(NICS))) if cluster.scale_out else 0.0
        return cluster.fitted.get(self.name, float(self.name.startswith(KERNELS)))

    def times(self, cluster: Cluster, factor: float) -> Cluster:
        """The cluster with the cost `factor` times as large."""
        value = self.of(cluster) * factor
        if self.name == HOST:
            return replace(cluster, host_factor=value)
        if self.name.startswith(NICS):
            assert cluster.scale_out is not None
            moved: ByName = {self.name.removeprefix(NICS): value}
            return replace(cluster, scale_out=replace(cluster.scale_out, **moved))
        if known := constant_of(self.name):
            value = min(max(value, known.low), known.high)
        return replace(cluster, constants=tuple(sorted((dict(cluster.constants) | {self.name: value}).items())))


COSTS = (
    Cost(HOST, 0.35, "launches of the host"),
    Cost("training.wait_us", 0.5, "wait for the last rank of a collective"),
    Cost("proxy.alltoall_us", 0.4, "start of NCCL's alltoall over proxies"),
    Cost("proxy.deepep_us", 0.4, "start of a DeepEP exchange over NVSHMEM's proxy"),
    Cost("proxy.uccl_us", 0.4, "start of a DeepEP exchange over UCCL's proxies"),
    Cost("scale_out.message_us", 0.5, "post of a message by a proxy"),
    Cost("scale_out.nic_GBps", 0.15, "rate of a NIC"),
    Cost("hopper.bf16_sustained", 0.1, "sustained BF16 products"),
    Cost("hopper.fp8_sustained", 0.1, "sustained FP8 products"),
    Cost("blackwell.bf16_sustained", 0.1, "sustained BF16 products"),
    Cost("blackwell.fp8_sustained", 0.1, "sustained FP8 products"),
    Cost("hbm.fraction", 0.05, "rate of memory"),
    Cost("link.fraction", 0.1, "rate of links"),
    Cost("serving.step_us", 0.4, "work of an engine's scheduler beside a step"),
    Cost("serving.request_us", 0.5, "work of an engine's host on a request"),
    Cost("serving.experts_stream", 0.1, "rate of memory under experts' kernels"),
    Cost("serving.gap_us", 0.4, "gap between two kernels of a graph"),
)
"""Spreads: rates 5 to 15 %, times of software 35 to 50 %. They were chosen after a first fit of 34 whole steps over EFA had been seen."""
OF_MODEL = 0.136
"""Spread of the kernels of a served model in a format: 1.48 times the median size of the medians of 25 packaged cells, each with its model left out
(TPOT, `residuals`). Their standard deviation is 0.37, so the prior has the tails of Student's t."""


def kernels_of(names: Iterable[str]) -> tuple[Cost, ...]:
    """The costs of served models in their formats (`Replica.own`)."""
    meaning = "time of a served model's kernels over their forms"
    return tuple(Cost(name, OF_MODEL, meaning, far=True) for name in sorted(set(names)))


LEAST_EFFECT = 0.005
"""Part of a row's time that a cost must move, for a change by a factor of e, to be touched by it."""
STEP = 0.05
FREEDOM = 4.0
LEAST_NOISE, NOISE = 0.05, 0.12
"""Standard deviation of a row's logarithm: least, and before rows say it. Raised from 0.03 and 0.08 after the coverage on the same rows was seen."""

PRIOR_ROWS = 4.0
"""Rows that `NOISE` counts as."""
Z50, Z80, Z90 = 0.6745, 1.2816, 1.645

Change = Callable[[Cluster], Cluster]
Predict = Callable[[Change], F64]
"""Logarithms of predictions of all rows on machines that a change made of those of the rows."""


@frozen
class Learned:
    """The posterior of `costs` in logarithms of factors: means `[costs]`, covariance `[costs, costs]`. `noise`: of one row.

    `left`: `[rows]` ln(measured / predicted) afterwards; `gains`: `[costs, rows]` what each row adds to each mean.
    """

    costs: tuple[Cost, ...]
    mean: F64
    covariance: F64
    noise: float
    left: F64
    gains: F64
    freedom: float = math.inf
    """Rows, those that the prior of the noise counts as included, that are left to say `noise`: less what the costs take up."""

    def change(self, cluster: Cluster) -> Cluster:
        """A machine with the costs at their means."""
        return changed(cluster, self.costs, self.mean)

    @property
    def spread(self) -> F64:
        """`[costs]` standard deviations of logarithms."""
        return np.sqrt(np.diag(self.covariance))

    def width(self, slope: F64, quantile: float = Z90) -> F64:
        """`[rows]` half of the interval of ln(measured / predicted) of rows of `slope` `[rows, costs]`: Student's t, as rows said the noise, too."""
        known = np.einsum("ij,jk,ik->i", slope, self.covariance, slope)
        heavy = 1 + (quantile**2 + 1) / (4 * self.freedom) + (5 * quantile**4 + 16 * quantile**2 + 3) / (96 * self.freedom**2)
        out: F64 = quantile * heavy * np.sqrt(known + self.noise**2)
        return out

    def interval(self, predict: Predict) -> Interval:
        """Of the one answer that `predict` gives on machines near that of the means: both what the costs leave open and the noise of a row."""
        slope = slopes(predict, self.costs, np.zeros(len(self.costs)))
        half, wide, wider = (float(self.width(slope, quantile)[0]) for quantile in (Z50, Z80, Z90))
        low90, low80, high80, high90 = np.exp([-wider, -wide, wide, wider]).tolist()
        return Interval(low90, low80, high80, high90, math.expm1(half), near=True, n=len(self.left))


def changed(cluster: Cluster, costs: Sequence[Cost], logs: F64) -> Cluster:
    """`cluster` with costs `exp(logs)` times as large; costs that it does not have stay away."""
    for cost, log in zip(costs, logs, strict=True):
        if log and cost.of(cluster):
            cluster = cost.times(cluster, float(np.exp(log)))
    return cluster


def slopes(predict: Predict, costs: Sequence[Cost], at: F64) -> F64:
    """`[rows, costs]` d ln(prediction) / d ln(cost)."""
    base = predict(lambda cluster: changed(cluster, costs, at))
    moved = [predict(lambda cluster, k=k: changed(cluster, costs, at + STEP * np.eye(len(costs))[k])) for k in range(len(costs))]  # type: ignore[misc]
    return np.stack([(one - base) / STEP for one in moved], axis=1)


def touched(predict: Predict, costs: Sequence[Cost] = COSTS) -> tuple[Cost, ...]:
    """Costs that move a row."""
    found = np.abs(slopes(predict, costs, np.zeros(len(costs)))).max(axis=0)
    return tuple(cost for cost, most in zip(costs, found, strict=True) if most >= LEAST_EFFECT)


def solve(costs: tuple[Cost, ...], slope: F64, off: F64) -> Learned:
    """The posterior of costs whose `slope` `[rows, costs]` explains `off` = ln(measured / predicted) `[rows]`."""
    spread, far_off, noise, freedom = np.array([cost.spread for cost in costs]), np.array([cost.far for cost in costs]), NOISE, PRIOR_ROWS
    x: F64 = np.zeros(len(spread))
    inverse, weighted = np.diag(spread**2.0), slope.T
    for turn in range(12):
        left = (off - slope @ x) * (turn > 0)  # first plain least squares: from the priors, rows that agree far away would all be outliers
        prior = np.diag(np.where(far_off, (FREEDOM + 1) / (FREEDOM + (x / spread) ** 2), 1.0) / spread**2)
        weighted = slope.T * ((FREEDOM + 1) / (FREEDOM + (left / noise) ** 2) / noise**2)
        inverse = f64(np.linalg.inv(weighted @ slope + prior))
        x = inverse @ (weighted @ off)
        # rows, less those that the costs take up, and the prior of NOISE say how far a row is off
        freedom = PRIOR_ROWS + len(off) - float(np.trace(inverse @ weighted @ slope))
        far = np.minimum(np.abs(off - slope @ x), 3 * noise)
        noise = max(LEAST_NOISE, float(np.sqrt((np.sum(far**2) + PRIOR_ROWS * NOISE**2) / freedom)))
    return Learned(costs, x, inverse, noise, off - slope @ x, (inverse @ weighted) * off, freedom)


def learn(predict: Predict, measured: F64, costs: Sequence[Cost]) -> Learned:
    """The posterior of `costs` after rows `measured`: slopes are read at the priors, then at the first posterior."""
    at = np.zeros(len(costs))
    for _ in range(2):
        slope = slopes(predict, costs, at)
        off = np.log(measured) - predict(lambda cluster: changed(cluster, costs, at)) + slope @ at  # noqa: B023
        done = solve(tuple(costs), slope, off)
        at = done.mean
    return done


def next_rows(slope: F64, wanted: F64, information: F64, n: int) -> list[int]:
    """The `n` rows of `slope` `[rows, costs]` that, measured one after the other, leave the rows `wanted` least uncertain.

    `information`: `[costs, costs]` inverse covariance of the costs before them.
    """
    chosen = list[int]()
    for _ in range(min(n, len(slope))):
        rest = [i for i in range(len(slope)) if i not in chosen]
        left = [np.trace(wanted @ np.linalg.inv(information + np.outer(slope[i], slope[i]) / NOISE**2) @ wanted.T) for i in rest]
        chosen.append(rest[int(np.argmin(left))])
        information = information + np.outer(slope[chosen[-1]], slope[chosen[-1]]) / NOISE**2
    return chosen
