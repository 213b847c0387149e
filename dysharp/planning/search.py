"""Exact search: every candidate of a space is kept, pruned by a bound, or rejected by a constraint, and each is counted once.

Candidates are costed in the order of their bounds, until the next bound exceeds the worst of the best.
"""

import bisect
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass

import numpy as np

from dysharp.planning.cost import Costed, Coster
from dysharp.planning.space import INTEGERS, Column, Space, constraints

WAVE = 1 << 14
"""Candidates whose second bound is taken together."""
MEMORY_STATE, MEMORY = "memory: weights, gradients and optimizer alone", "memory of the fullest rank"
PEAK, EVEN = "bound: all FLOPs at the peak, even stages", "bound: closed forms of even stages"
KEPT, SLOWER = "kept", "costed: slower than the kept layouts, or other forms of their degrees"
Tick = Callable[[int, int, str], None]
Journal = MutableMapping[int, tuple[float, float]]
"""{candidate: (microseconds of a step, bytes of the fullest rank)} of an earlier search of the same space."""


@dataclass(frozen=True, slots=True)
class Found:
    """`best`: fastest first; equal ones in the order of the space. `counts`: {verdict: candidates}; they add up to `size`."""

    best: tuple[Costed, ...]
    counts: dict[str, int]
    size: int
    bounded: int
    """Candidates that keep all constraints, which bounds have seen."""


def search(coster: Coster, n_best: int = 10, journal: Journal | None = None, ceiling: float = float("inf"), tick: Tick = lambda *_: None) -> Found:
    """The `n_best` fastest sets of degrees that fit the memory, each in its fastest form, and take at most `ceiling` microseconds.

    `tick`: called with candidates decided, all candidates, a text.
    """
    counts: dict[str, int] = {}
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
        even = coster.balanced_bound(_columns(coster, wave), wave)
        order = np.argsort(even, kind="stable")
        for done, at in enumerate(order):
            if even[at] > worst():
                counts[EVEN] = counts.get(EVEN, 0) + len(order) - done
                break
            verdict = _look(coster, int(wave[at]), known, best, n_best)
            looked += 1
            tick(coster.space.size - len(numbers) + first + done, coster.space.size, f"{looked} costed")
            counts[verdict] = counts.get(verdict, 0) + 1
    counts[SLOWER] = counts.get(SLOWER, 0) - len(best)
    counts[KEPT] = len(best)
    found = tuple(coster.cost(number) for _, number, _ in best)
    return Found(found, {name: n for name, n in counts.items() if n}, coster.space.size, bounded)


Best = tuple[float, int, tuple[int, ...]]
"""Microseconds of a step, candidate, its degrees."""


def degrees_of(space: Space, number: int) -> tuple[int, ...]:
    """Degrees and micro-batch of a candidate."""
    values = space.candidate(number)
    return tuple(values[name] for name in INTEGERS)


def _look(coster: Coster, number: int, known: Journal, best: list[Best], n_best: int) -> str:
    """The verdict on a candidate. `best` keeps the fastest form (recomputation, schedule, overlap, EP system) of each set of degrees."""
    if number not in known:
        done = coster.cost(number)
        known[number] = done.step_us, done.peak_bytes
    step_us, peak = known[number]
    if peak > coster.capacity:
        return MEMORY
    degrees = degrees_of(coster.space, number)
    same = next((at for at, one in enumerate(best) if one[2] == degrees), None)
    if same is not None:
        if best[same][:2] <= (step_us, number):
            return SLOWER
        del best[same]
    bisect.insort(best, (step_us, number, degrees))
    del best[n_best:]
    return SLOWER


def admitted(coster: Coster, counts: dict[str, int]) -> tuple[Column, np.ndarray[tuple[int, ...], np.dtype[np.float64]], int]:
    """Numbers of the candidates that keep every constraint and whose state fits, by their first bound."""
    kept, bounds, bounded = [], [], 0
    for numbers, columns in coster.space.blocks():
        alive = np.ones(len(numbers), np.bool_)
        for name, keeps in constraints(coster.task, coster.space, columns, coster.machine.domain):
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
        rules = (keeps for _, keeps in constraints(coster.task, coster.space, columns, coster.machine.domain))
        alive = np.logical_and.reduce([*rules])
        yield numbers[alive], {name: column[alive] for name, column in columns.items()}


def leanest(coster: Coster, n: int = 32) -> list[Costed]:
    """Candidates that keep every constraint but memory and hold least by a rough count: state, and a mean layer's tensors in flight."""
    every, sizes = zip(*((own, coster.state_bound(rest) + coster.rough_activations(rest)) for own, rest in kept(coster)), strict=True)
    return [coster.cost(int(number)) for number in np.concatenate(every)[np.argsort(np.concatenate(sizes), kind="stable")[:n]]]


def _columns(coster: Coster, numbers: Column) -> dict[str, Column]:
    lists = coster.space.lists
    places = np.unravel_index(numbers, tuple(len(values) for values in lists.values()))
    return {
        name: np.asarray(values, np.int64)[at] if isinstance(values[0], int) else at.astype(np.int64)
        for (name, values), at in zip(lists.items(), places, strict=True)
    }  # fmt: skip
