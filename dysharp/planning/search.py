"""Exact search: every candidate of a space is kept, pruned by a bound, or rejected by a constraint, and each is counted once.

Candidates are costed in the order of their bounds, until the next bound exceeds the worst of the best. A `_StoredJournal` keeps costs in parts:
a search that is killed goes on where it was, on the same code and inputs.

`sensitivity`: does the winner stay the winner where a constant of the cost is 20 % lower or higher? Every variation is a search of its own.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import ByName, ConfigError, Numbers, Tally, code_digest, frozen
from dysharp.costs import arch_of
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.space import INTEGERS, Column, Space, constraints
from dysharp.runs.store import RowKey, Store
from dysharp.specs import Cluster
from dysharp.specs.fitted import fitted_values

PART = 200
"""Costs of a part: a killed search repeats at most so many."""


class _StoredJournal(dict[int, tuple[float, float]]):
    """{candidate: (microseconds of a step, bytes of the fullest rank)}. `read`: costs that an earlier search had."""

    def __init__(self, store: Store, asked: ByName) -> None:
        """With the parts of earlier searches."""
        super().__init__()
        self.store, self.asked, self._parts = store, asked, 0
        self._new: dict[int, tuple[float, float]] = {}
        while (found := store.get(self._key(self._parts))) is not None:
            self.update({int(number): (step, peak) for number, step, peak in found["costs"]})
            self._parts += 1
        self.read = len(self)

    def __setitem__(self, number: int, cost: tuple[float, float]) -> None:
        super().__setitem__(number, cost)
        self._new[number] = cost
        if len(self._new) >= PART:
            self.flush()

    def flush(self) -> None:
        """Write what is new as a part."""
        if self._new:
            self.store.put(self._key(self._parts), {"costs": [[number, *cost] for number, cost in self._new.items()]})
            self._parts += 1
            self._new = {}

    def _key(self, part: int) -> RowKey:
        return RowKey(self.asked | {"part": part}, "", code_digest())


def journal_of(folder: Path, coster: Coster) -> _StoredJournal:
    """The journal of a search in a folder of Rows or of a study."""
    return _StoredJournal(Store(folder), _asked_of(coster))


def _asked_of(coster: Coster) -> ByName:
    """All that the costs of a search depend on, as plain values."""
    task, space = asdict(coster.task), {name: [list(v) if isinstance(v, tuple) else v for v in values] for name, values in coster.space.lists.items()}
    rows = sorted([*map(str, key), *asdict(ep).values()] for key, ep in coster.rows.items())
    return {"plan": _plain(task), "space": _plain(space), "cluster": _plain(asdict(coster.machine.cluster)), "rows": _plain(rows)}


def _plain(value: Any) -> Any:
    """`value` as JSON reads it back."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


WAVE = 1 << 14
"""Candidates whose second bound is taken together."""
MEMORY_STATE, MEMORY = "memory: weights, gradients and optimizer alone", "memory of the fullest rank"
PEAK, EVEN = "bound: all FLOPs at the peak, even stages", "bound: closed forms of even stages"
KEPT, SLOWER = "kept", "costed: slower than the kept layouts, or other forms of their degrees"
NOT_LOOKED = "quick: not looked at"
FIRST = 24
"""Candidates of a first look by their bound, and as many from the whole space."""
STARTS, ROUNDS, MOST_ASIDE = 4, 4, 64
"""Candidates from which a first look goes on, times that it steps aside from each, and the most steps that it tries each time."""
Tick = Callable[[int, int, str], None]
Best = tuple[float, int, Numbers]
"""Microseconds of a step, candidate, its degrees."""
Told = Callable[[Costed], None]
"""Called with the best so far."""
Journal = MutableMapping[int, tuple[float, float]]
"""{candidate: (microseconds of a step, bytes of the fullest rank)} of an earlier search of the same space."""


@frozen
class SearchResult:
    """`best`: fastest first; equal ones in the order of the space. `counts`: {verdict: candidates}; they add up to `size`."""

    best: tuple[Costed, ...]
    counts: Tally
    size: int
    bounded: int
    """Candidates that keep all constraints, which bounds have seen."""


def first_answer(coster: Coster, told: Told) -> None:
    """Tell of a few layouts at once: degrees alone vary, so that the space has thousands of candidates, not millions."""
    lists = coster.space.lists
    kept = {name: lists[name][:1] for name in ("etp", "cp", "micro_batch", "offload", "schedule", "overlap")}
    few = replace(coster.space, **kept, recompute=lists["recompute"][-2:], system=lists["system"][-1:])
    first_look(Coster(coster.task, coster.machine, few), 1, told, rounds=0)


def first_look(coster: Coster, n_best: int = 10, told: Told | None = None, rounds: int = ROUNDS, seeds: Sequence[Costed] = ()) -> SearchResult:
    """The fastest of a few candidates: `FIRST` by their bound and as many from the whole space, of those that fit the memory by a rough count; then
    from `STARTS` of the best, `rounds` times all that differ from the best so far in one dimension. `told`: as for `search`. `seeds`: layouts that
    are looked at first where the space has them.

    In FP8 also the best of a first look in BF16, so that FP8 is no slower where the two looks go different ways.
    """
    counts: Tally = {}
    numbers, _, bounded = admitted(coster, counts)
    columns = coster.space.columns(numbers)
    fits = numbers[coster.state_bound(columns) + coster.rough_activations(columns) <= coster.capacity]
    fits = fits if len(fits) else numbers
    places = np.stack(coster.space.places(numbers))
    known: Journal = {}
    best: list[Best] = []

    def look(few: Iterable[int]) -> None:
        for number in (number for number in few if number not in known):
            verdict = _look(coster, number, known, best, n_best, told)
            counts[verdict] = counts.get(verdict, 0) + 1

    look(number for number in map(coster.space.number, (one.values for one in seeds)) if number in numbers)
    look(int(number) for number in (*fits[:FIRST], *fits[:: max(1, len(fits) // FIRST)][:FIRST]))
    for _, start, _ in best[:STARTS]:
        at = start
        for _ in range(rounds):
            here = places[:, numbers == at]
            aside = [int(number) for number in numbers[(places != here).sum(axis=0) == 1]][:MOST_ASIDE]
            look(aside)
            at = min((n for n in (at, *aside) if known[n][1] <= coster.capacity), key=lambda n: known[n][0])
    if rounds and coster.wide != coster.task.training_recipe:
        wide = Coster(replace(coster.task, training_recipe=coster.wide), coster.machine, coster.space, coster.rows)
        look(one.number for one in first_look(wide, n_best, seeds=seeds).best)
    return _found(coster, best, counts | {NOT_LOOKED: len(numbers) - len(known)}, bounded)


def _found(coster: Coster, best: list[Best], counts: Tally, bounded: int) -> SearchResult:
    counts = counts | {SLOWER: counts.get(SLOWER, 0) - len(best), KEPT: len(best)}
    return SearchResult(tuple(coster.cost(number) for _, number, _ in best), {name: n for name, n in counts.items() if n}, coster.space.size, bounded)


def search(
    coster: Coster, n_best: int = 10, journal: Journal | None = None, ceiling: float = float("inf"), tick: Tick = lambda *_: None,
    told: Told | None = None,
) -> SearchResult:  # fmt: skip
    """The `n_best` fastest sets of degrees that fit the memory, each in its fastest form, and take at most `ceiling` microseconds.

    `tick`: called with candidates decided, all candidates, a text. `told`: with every new best.
    """
    counts: Tally = {}
    numbers, bounds, bounded = admitted(coster, counts)
    known: Journal = {} if journal is None else journal
    best: list[Best] = []

    def worst() -> float:
        return min(ceiling * (1 + 1e-12), best[-1][0] if len(best) == n_best else float("inf"))

    looked = 0
    for first in range(0, len(numbers), WAVE):
        if bounds[first] > worst():
            counts[PEAK] = counts.get(PEAK, 0) + len(numbers) - first
            break
        wave = np.sort(numbers[first : first + WAVE])
        even = coster.balanced_bound(coster.space.columns(wave), wave)
        order = np.argsort(even, kind="stable")
        for done, at in enumerate(order):
            if even[at] > worst():
                counts[EVEN] = counts.get(EVEN, 0) + len(order) - done
                break
            verdict = _look(coster, int(wave[at]), known, best, n_best, told)
            looked += 1
            tick(coster.space.size - len(numbers) + first + done, coster.space.size, f"{looked} candidates costed")
            counts[verdict] = counts.get(verdict, 0) + 1
    return _found(coster, best, counts, bounded)


def _degrees_of(space: Space, number: int) -> Numbers:
    """Degrees and micro-batch of a candidate."""
    values = space.candidate(number)
    return tuple(values[name] for name in INTEGERS)


def _look(coster: Coster, number: int, known: Journal, best: list[Best], n_best: int, told: Told | None) -> str:
    """The verdict on a candidate. `best` keeps the fastest form (recomputation, schedule, overlap, EP system) of each set of degrees, and `told`
    hears of a new first one.
    """
    if number not in known:
        done = coster.cost(number)
        known[number] = done.step_us, done.peak_bytes
    step_us, peak = known[number]
    if peak > coster.capacity:
        return MEMORY
    degrees = _degrees_of(coster.space, number)
    leads = not best or step_us < best[0][0]
    same = next((at for at, one in enumerate(best) if one[2] == degrees), None)
    if same is not None:
        if best[same][:2] <= (step_us, number):
            return SLOWER
        del best[same]
    bisect.insort(best, (step_us, number, degrees))
    del best[n_best:]
    if told is not None and leads:
        told(coster.cost(number))
    return SLOWER


def admitted(coster: Coster, counts: Tally) -> tuple[Column, np.ndarray[Numbers, np.dtype[np.float64]], int]:
    """Numbers of the candidates that keep every constraint and whose state fits, by their first bound."""
    kept, bounds, bounded = [], [], 0
    for numbers, columns in coster.space.blocks():
        alive = np.ones(len(numbers), np.bool_)
        for name, keeps in constraints(coster.task, coster.space, columns, coster.machine):
            lost = alive & ~keeps
            if n := int(lost.sum()):
                counts[name] = counts.get(name, 0) + n
            alive &= keeps
        rest = {name: column[alive] for name, column in columns.items()}
        bounded += int(alive.sum())
        fits = coster.state_bound(rest) <= coster.capacity
        if n := int((~fits).sum()):
            counts[MEMORY_STATE] = counts.get(MEMORY_STATE, 0) + n
        rest = {name: column[fits] for name, column in rest.items()}
        kept.append(numbers[alive][fits])
        bounds.append(coster.compute_bound(rest))
    every, by = np.concatenate(kept), np.concatenate(bounds)
    order = np.argsort(by, kind="stable")
    return every[order], by[order], bounded


def kept(coster: Coster) -> Iterator[tuple[Column, dict[str, Column]]]:
    """(numbers, columns) of the candidates that keep every constraint but memory, block by block."""
    for numbers, columns in coster.space.blocks():
        rules = (keeps for _, keeps in constraints(coster.task, coster.space, columns, coster.machine))
        alive = np.logical_and.reduce([*rules])
        yield numbers[alive], {name: column[alive] for name, column in columns.items()}


FACTORS = (0.8, 1.2)
FITTED = ("training.", "gpu.", "hbm.", "gemm.", "sm.", "link.", "nccl.", "deepep.", "attention.", "internode.")
"""Fitted constants that a layout's cost may read, beside those of the GPU's architecture."""
LEAST = 1e-6
"""Change of the winner's cost below which a constant is not in it."""
Change = Callable[[Cluster, float], Cluster]


@frozen
class ConstantChange:
    """One constant times `factor`. `step`: the old winner's step over before, minus 1.

    `behind`: part of the new winner's tokens/s that the old one lacks, infinite where it does not fit; 0: it stays.
    """

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


def _constants_of(cluster: Cluster) -> dict[str, Change]:
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


def _variations(coster: Coster, cluster: Cluster) -> Iterator[tuple[str, float, Coster]]:
    """(constant, factor, a coster with it). A factor that the meaning of a fitted constant forbids is left out."""
    for name, change in _constants_of(cluster).items():
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


def sensitivity(coster: Coster, cluster: Cluster, winner: Costed, tick: Tick = lambda *_: None) -> list[ConstantChange]:
    """Every constant that the winner's cost or memory depends on, the most telling first. `tick`: called with changes done, all, and the next one."""
    found, every = [], [*_variations(coster, cluster)]
    for done, (name, factor, other) in enumerate(every):
        tick(done, len(every), f"with {name} x {factor:g}")
        old = other.cost_of(winner.values, winner.number)
        step = old.step_us / winner.step_us - 1
        fits = old.peak_bytes <= other.capacity
        if abs(step) < LEAST and other.capacity == coster.capacity:
            continue
        best = search(other, 1, ceiling=old.step_us if fits else float("inf")).best
        if not best:
            continue
        new, behind = best[0], 1 - best[0].step_us / old.step_us if fits else float("inf")
        same = new.values == winner.values or behind < LEAST
        found.append(ConstantChange(name, factor, step, winner if same else new, 0.0 if same else behind))
    return sorted(found, key=lambda one: (-one.behind, -abs(one.step)))
