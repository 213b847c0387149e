"""Faults to inject: faults of the machine (packet path) and hard cases of the routing (both paths)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dysharp.base import Array, ConfigError, check_word, frozen, read_toml

DROPPED = -1


@frozen
class Faults:
    """Faults of the machine. A table size of 0 means the size that the cluster states."""

    reduction_entries: int = 0
    tlb_entries: int = 0
    tracker_entries: int = 0
    timeouts: bool = False  # any live reduction session may time out
    late_memory: bool = False  # AL misses are answered only when no other event is possible, so first touches race
    lanes: int = 1  # virtual channels per class: packets of different tags overtake each other
    duplicate_every: int = 0  # every n-th request is sent again with the next attempt number
    lose_every: int = 0  # every n-th message between NVLink domains is lost
    unheard_every: int = 0  # every n-th acknowledgement of a message between NVLink domains is lost
    late_every: int = 0  # every n-th message between NVLink domains waits for messages behind it

    @property
    def any(self) -> bool:
        """Whether any fault is injected."""
        return self != Faults()

    @property
    def of_packets(self) -> bool:
        """Whether a fault is injected that packets have and rows do not."""
        return replace(self, lose_every=0, unheard_every=0, late_every=0).any


MACHINE, SCALE_OUT, USERS = (read_toml(Path(__file__).with_name("words.toml"))[part] for part in ("machine", "scale_out", "users"))
"""Faults of the machine, and of messages between NVLink domains (row path) -> words, and the fields of `Faults` that they set; who uses a block."""


def _empty(expert: Array, gpus: int, n_experts: int) -> Array:
    expert[0] = DROPPED
    return expert


def _all_on(expert: Array, gpus: int, n_experts: int, gpu: int, kind: str) -> Array:
    per_gpu, topk = n_experts // gpus, expert.shape[1]
    if per_gpu < topk:
        raise ConfigError(f"inject {kind}: found {per_gpu} experts per GPU, expected at least top-{topk}")
    expert[0] = gpu * per_gpu + np.arange(topk)
    return expert


def _idle_expert(expert: Array, gpus: int, n_experts: int) -> Array:
    """Expert 0 gets no token. Its tokens take a free expert, or go to one expert less."""
    for token in np.flatnonzero((expert == 0).any(axis=1)):
        free = np.setdiff1d(np.arange(1, n_experts), expert[token])
        expert[token, expert[token] == 0] = free[0] if len(free) else DROPPED
    return expert


def _drop(expert: Array, gpus: int, n_experts: int) -> Array:
    """Every expert takes its first tokens up to the mean load and drops all later tokens (a capacity factor of one)."""
    capacity = max(1, expert.size // n_experts)
    for e in range(n_experts):
        token, column = np.nonzero(expert == e)
        expert[token[capacity:], column[capacity:]] = DROPPED
    return expert


ROUTING: dict[str, tuple[str, Callable[[Array, int, int], Array]]] = {
    "empty": ("token 0 has an empty target list", _empty),
    "local": ("all experts of token 0 are on its own GPU", lambda expert, gpus, n_experts: _all_on(expert, gpus, n_experts, 0, "local")),
    "one-gpu": ("all experts of token 0 are on the last GPU", lambda expert, gpus, n_experts: _all_on(expert, gpus, n_experts, gpus - 1, "one-gpu")),
    "idle-expert": ("expert 0 gets no token", _idle_expert),
    "drop": ("experts drop tokens above their capacity", _drop),
}
KINDS = {name: text for kinds in (MACHINE, SCALE_OUT, ROUTING) for name, (text, _) in kinds.items()}


def why_not(kind: str, system: str, tables: Mapping[str, Mapping[str, int]], domains: int = 1) -> str:
    """Why the injected `kind` happened 0 times in a run with these counts of blocks (`Statistics.tables`)."""
    if kind in SCALE_OUT and domains == 1:
        return f"cannot happen here: one NVLink domain, so {system} sends nothing by NIC (try --cluster hw-dgx-h100-x2 --gpus 16)"
    if kind in USERS:
        block, count, text = USERS[kind]
        if not tables.get(block, {}).get(count):
            return f"cannot happen here: {text.format(system=system)}"
    return "did not happen in this run; more tokens or another seed may make it happen"


def machine_faults(kinds: Iterable[str]) -> Faults:
    """All faults of the machine among `kinds`, combined. Raises ConfigError for an unknown kind, with the nearest one."""
    faults = Faults()
    for kind in kinds:
        check_word(kind, KINDS, f"inject {kind!r}: unknown")
        if kind not in ROUTING:
            faults = replace(faults, **(MACHINE | SCALE_OUT)[kind][1])
    return faults


def routing_cases(expert: Array, kinds: Iterable[str], gpus: int, n_experts: int) -> Array:
    """`[tokens, topk]` choices, changed by the hard cases among `kinds`."""
    expert = expert.copy()
    for kind in kinds:
        if kind in ROUTING:
            expert = ROUTING[kind][1](expert, gpus, n_experts)
    return expert
