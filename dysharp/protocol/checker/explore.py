"""Depth-first search over every order of events. It knows nothing about what a state is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """What a search has seen. `terminals`: states without a successor; `reason` and `path`: the first of them that was bad, and how.

    `complete`: nothing was left out.
    """

    states: int
    transitions: int
    terminals: frozenset[S]
    complete: bool
    reason: str | None = None
    path: tuple[str, ...] = ()


def explore(
    initial: S,
    successors: Callable[[S], Iterable[tuple[L, S]]],
    verdict: Callable[[S], str | None],
    name: Callable[[L], str] = str,
    max_states: int = 10_000_000,
) -> Found[S]:
    """Every state that can be reached from `initial`; stops at the first bad terminal, at a failed assertion, or at `max_states`.

    `verdict(terminal)` is None or what is wrong with it; `name` spells a step for the path. Visited states are kept exactly, not as
    hashes, so a complete search is a proof.
    """
    seen, terminals = {initial}, set[S]()
    path: list[L] = []
    transitions = 0
    stack: list[Iterator[tuple[L, S]]] = []

    def found(complete: bool, reason: str | None = None) -> Found[S]:
        return Found(len(seen), transitions, frozenset(terminals), complete, reason, tuple(map(name, path)) if reason else ())

    def enter(state: S) -> str | None:
        try:
            following = list(successors(state))
        except (AssertionError, KeyError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
        stack.append(iter(following))
        if following:
            return None
        terminals.add(state)
        return verdict(state)

    if reason := enter(initial):
        return found(False, reason)
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if path:
                path.pop()
            continue
        label, state = step
        transitions += 1
        if state in seen:
            continue
        if len(seen) >= max_states:
            return found(False)
        seen.add(state)
        path.append(label)
        if reason := enter(state):
            return found(False, reason)
    return found(True)
