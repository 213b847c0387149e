"""Depth-first search over every order of events. It treats a state as an opaque value."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Explored(Generic[S]):
    """The result of a search."""

    states: int
    transitions: int
    terminals: frozenset[S]
    """States without a successor."""
    complete: bool
    """Whether the search visited every reachable state."""
    reason: str | None = None
    """The first fault. None: no fault."""
    path: tuple[str, ...] = ()
    """The steps that lead to the fault."""


def explore(
    initial: S,
    successors: Callable[[S], Iterable[tuple[L, S]]],
    verdict: Callable[[S], str | None],
    name: Callable[[L], str] = str,
    max_states: int = 10_000_000,
) -> Explored[S]:
    """Visits every state that can be reached from `initial`.

    The search stops at the first bad terminal, at a failed assertion, or at `max_states`. `verdict(terminal)` is None
    or the fault of the terminal. `name` spells a step for the path. Visited states are kept exactly and not as hashes,
    so a complete search is a proof.
    """
    seen, terminals = {initial}, set[S]()
    path: list[L] = []
    transitions = 0
    stack: list[Iterator[tuple[L, S]]] = []

    def result(complete: bool, reason: str | None = None) -> Explored[S]:
        return Explored(len(seen), transitions, frozenset(terminals), complete, reason, tuple(map(name, path)) if reason else ())

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
        return result(False, reason)
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
            return result(False)
        seen.add(state)
        path.append(label)
        if reason := enter(state):
            return result(False, reason)
    return result(True)
