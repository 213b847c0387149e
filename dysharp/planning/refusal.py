"""Why nothing fits a budget: the constraint that binds, and the smallest change of GPUs, batch or memory by which something fits."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dysharp.base import Tally
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.search import MEMORY, MEMORY_STATE, SearchResult, kept
from dysharp.planning.space import Space, Task, constraints
from dysharp.specs import Cluster
from dysharp.training import CAP

FACTORS = (2, 4, 8, 16, 32, 64)


def refusal(task: Task, cluster: Cluster, space: Space, found: SearchResult) -> str:
    """One line: where, what binds, what would fit."""
    where = f"plan: {task.model.name} on {task.gpus} GPUs of {cluster.name}"
    name, n = _binding(task, cluster, space, found)
    changes = [fix for fix in (_gpus(task, cluster, space), _batch(task, cluster, space), _memory(task, cluster, space)) if fix]
    want = " or ".join(changes) or "other values (--try), another batch or another number of GPUs"
    return f"{where}: found no layout among {found.size:,}; binding: {name} ({n:,} candidates break nothing else); expected {want}"


def _binding(task: Task, cluster: Cluster, space: Space, found: SearchResult) -> tuple[str, int]:
    """(constraint, candidates that break it alone): memory, where candidates keep all others; else the constraint that most of them break alone."""
    memory = {name: n for name, n in found.counts.items() if name in (MEMORY, MEMORY_STATE)}
    if memory:
        return max(memory, key=lambda name: memory[name]), sum(memory.values())
    alone: Tally = {}
    for _, columns in space.blocks():
        kept = dict(constraints(task, space, columns, machine_of(cluster)))
        broken = np.sum([~keeps for keeps in kept.values()], axis=0)
        for name, keeps in kept.items():
            alone[name] = alone.get(name, 0) + int((~keeps & (broken == 1)).sum())
    name = max(alone, key=lambda one: alone[one])
    return (name, alone[name]) if alone[name] else (max(found.counts, key=lambda one: found.counts[one]), 0)


def _least(task: Task, cluster: Cluster, space: Space) -> float:
    """The least bytes among the layouts that look leanest; infinite without a layout."""
    lean = _leanest(Coster(task, machine_of(cluster), space))
    return min((one.peak_bytes for one in lean), default=float("inf"))


def _leanest(coster: Coster, n: int = 32) -> list[Costed]:
    """Candidates that keep every constraint but memory and hold least by a rough count: state, and a mean layer's tensors in flight."""
    every, sizes = zip(*((own, coster.state_bound(rest) + coster.rough_activations(rest)) for own, rest in kept(coster)), strict=True)
    return [coster.cost(int(number)) for number in np.concatenate(every)[np.argsort(np.concatenate(sizes), kind="stable")[:n]]]


def _fits(task: Task, cluster: Cluster, space: Space) -> bool:
    return _least(task, cluster, space) <= CAP * cluster.hbm_bytes


def _counts(task: Task, cluster: Cluster) -> Iterator[int]:
    """Numbers of GPUs above the task's: whole domains, powers of two, multiples; rising."""
    domain = machine_of(cluster).domain
    own = {domain * math.ceil((task.gpus + 1) / domain), 1 << task.gpus.bit_length(), *(task.gpus * factor for factor in FACTORS)}
    yield from sorted(n for n in own if n > task.gpus)


def _gpus(task: Task, cluster: Cluster, space: Space) -> str:
    for gpus in _counts(task, cluster):
        batch = gpus * math.ceil(task.batch / gpus)
        for more in (replace(task, gpus=gpus), replace(task, gpus=gpus, batch=batch)):
            if _fits(more, cluster, space):
                return f"{gpus} GPUs" + (f" with a batch of {more.batch}" if more.batch != task.batch else "")
    return ""


def _batch(task: Task, cluster: Cluster, space: Space) -> str:
    """The next batch that more replicas divide."""
    for step in (1 << i for i in range(1, task.gpus.bit_length() + 1)):
        batch = step * math.ceil(task.batch / step)
        if batch != task.batch and _fits(replace(task, batch=batch), cluster, space):
            return f"a batch of {batch}"
    return ""


def _memory(task: Task, cluster: Cluster, space: Space) -> str:
    least = _least(task, cluster, space)
    if least == float("inf"):
        return ""
    return f"{math.ceil(least / CAP / 1e9)} GB per GPU (of which {CAP:.0%} count; found {cluster.hbm_bytes / 1e9:.0f})"
