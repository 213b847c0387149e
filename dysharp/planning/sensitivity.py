"""Does the winner stay the winner where a constant of the cost is 20 % lower or higher? Every variation is a search of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dysharp.compute.operators import arch_of
from dysharp.errors import ConfigError
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.search import search
from dysharp.specs import Cluster
from dysharp.specs.fitted import fitted_values

FACTORS = (0.8, 1.2)
FITTED = ("training.", "gpu.", "hbm.", "gemm.", "sm.", "link.", "nccl.", "deepep.", "attention.", "internode.")
"""Fitted constants that a layout's cost may read, beside those of the GPU's architecture."""
LEAST = 1e-6
"""Change of the winner's cost below which a constant is not in it."""
Change = Callable[[Cluster, float], Cluster]


@dataclass(frozen=True, slots=True)
class Moved:
    """One constant times `factor`. `step`: the old winner's step over before, minus 1. `behind`: the old winner behind the new one; 0: it stays."""

    constant: str
    factor: float
    step: float
    winner: Costed
    behind: float


def _field(*names: str) -> Change:
    return lambda cluster, factor: replace(cluster, **{name: round(getattr(cluster, name) * factor) for name in names})


def _nic(cluster: Cluster, factor: float) -> Cluster:
    assert cluster.scale_out is not None
    return replace(cluster, scale_out=replace(cluster.scale_out, nic_GBps=cluster.scale_out.nic_GBps * factor))


def _constant(name: str) -> Change:
    def change(cluster: Cluster, factor: float) -> Cluster:
        others = tuple(one for one in cluster.constants if one[0] != name)
        return replace(cluster, constants=(*others, (name, cluster.fitted[name] * factor)))

    return change


def constants_of(cluster: Cluster) -> dict[str, Change]:
    """Every rate, size and fitted constant of a cluster that a cost may read, by name."""
    found: dict[str, Change] = {
        "rate of links": _field("link_bytes_per_us"), "rate of memory": _field("hbm_bytes_per_us"), "size of memory": _field("hbm_bytes"),
    }  # fmt: skip
    if cluster.scale_out:
        found["rate of NICs"] = _nic
    if not cluster.gpu:
        return found | {"rate of GEMMs": _field("bf16_flops_per_us", "fp8_flops_per_us")}
    own = (*FITTED, f"{arch_of(cluster.own_gpu)}.")
    return found | {name: _constant(name) for name in fitted_values(()) if name.startswith(own)}


def variations(coster: Coster, cluster: Cluster) -> Iterator[tuple[str, float, Coster]]:
    """(constant, factor, a coster with it). A factor that the meaning of a fitted constant forbids is left out."""
    for name, change in constants_of(cluster).items():
        for factor in FACTORS:
            try:
                machine = machine_of(change(cluster, factor))
            except ConfigError:
                continue
            yield name, factor, Coster(coster.task, machine, coster.space, coster.rows)
    if coster.task.imbalance is None and coster.task.spread:
        for factor in FACTORS:
            task = replace(coster.task, spread=coster.task.spread * factor)
            yield "spread of expert loads", factor, Coster(task, coster.machine, coster.space, coster.rows)


def sensitivity(coster: Coster, cluster: Cluster, winner: Costed, tick: Callable[[str], None] = lambda _: None) -> list[Moved]:
    """Every constant that the winner's cost or memory depends on, the most telling first."""
    found = []
    for name, factor, other in variations(coster, cluster):
        tick(name)
        old = other.cost_of(winner.values, winner.number)
        step = old.step_us / winner.step_us - 1
        fits = old.peak_bytes <= other.capacity
        if abs(step) < LEAST and other.capacity == coster.capacity:
            continue
        best = search(other, 1, ceiling=old.step_us if fits else float("inf")).best
        if not best:
            continue
        new, behind = best[0], old.step_us / best[0].step_us - 1 if fits else float("inf")
        same = new.values == winner.values or behind < LEAST
        found.append(Moved(name, factor, step, winner if same else new, 0.0 if same else behind))
    return sorted(found, key=lambda one: (-one.behind, -abs(one.step)))
