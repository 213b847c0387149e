"""The first cycle in a relation "waits for", for the errors of networks that stand still."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def first_cycle(starts: Iterable[T], waits_for: Callable[[T], T | None]) -> list[T]:
    """The first cycle that a walk from one of `starts` enters, its first member again at the end; empty if there is none."""
    for start in starts:
        chain: list[T] = []
        member: T | None = start
        while member is not None and member not in chain:
            chain.append(member)
            member = waits_for(member)
        if member is not None:
            return [*chain[chain.index(member) :], member]
    return []
