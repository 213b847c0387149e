"""Algebraic-layout table of a destination GPU with its TLB: first touch allocates, misses merge.

The table lives in memory, the TLB on chip. A lookup that misses becomes *pending* until memory answers;
lookups of the same entry meanwhile wait for that answer, so one (expert, algebraic index) can never get
two layout indices. Source: spec/dysharp.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Key = tuple[int, int]  # (local expert, algebraic index)


@dataclass(frozen=True, slots=True)
class AlState:
    """`table`: (key, layout index) of every allocated block, sorted; `tlb`: cached keys, oldest first.

    `pending`: (key, lookups that wait for it), in order of their misses; `next_free[expert]`: layout
    blocks in use.
    """

    tlb_entries: int
    next_free: tuple[int, ...]
    table: tuple[tuple[Key, int], ...] = ()
    tlb: tuple[Key, ...] = ()
    pending: tuple[tuple[Key, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Lookup:
    """A packet asks where its block lies."""

    key: Key


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Memory answers the pending miss of `key`, in any order among misses."""

    key: Key


Choice = Lookup | MemoryAnswer


def empty(n_experts: int, tlb_entries: int) -> AlState:
    """No block allocated, nothing cached. `tlb_entries` is at least 1."""
    return AlState(tlb_entries, (0,) * n_experts)


def layout_index(state: AlState, key: Key) -> int:
    """The block of `key`, -1 = not allocated."""
    return dict(state.table).get(key, -1)


def is_hit(state: AlState, key: Key) -> bool:
    """Whether a lookup of `key` is answered at once."""
    return key in state.tlb


def step(state: AlState, choice: Choice) -> AlState:
    """The tables after one lookup or one answer. An answer nobody waits for changes nothing."""
    if isinstance(choice, Lookup):
        return _look_up(state, choice.key)
    return _answer(state, choice.key) if choice.key in dict(state.pending) else state


def _look_up(state: AlState, key: Key) -> AlState:
    if is_hit(state, key):
        return state
    waiting = dict(state.pending)
    waiting[key] = waiting.get(key, 0) + 1
    return replace(state, pending=tuple(waiting.items()))


def _answer(state: AlState, key: Key) -> AlState:
    state = replace(state, pending=tuple(p for p in state.pending if p[0] != key))
    if layout_index(state, key) < 0:
        expert = key[0]
        free = state.next_free
        state = replace(
            state,
            table=tuple(sorted((*state.table, (key, free[expert])))),
            next_free=(*free[:expert], free[expert] + 1, *free[expert + 1 :]),
        )
    # Entries are written through, so the oldest one can be dropped without a trace.
    return replace(state, tlb=(*state.tlb, key)[-state.tlb_entries :])
