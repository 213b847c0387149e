"""Types that the blocks share: `Table`, an immutable map with an order, and `Addable`, a payload."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def put(column: tuple[V, ...], index: int, value: V) -> tuple[V, ...]:
    """The column with `value` at `index`."""
    return (*column[:index], value, *column[index + 1 :])


class Addable(Protocol):
    """A payload: an int, an array, or another type with `+`. Blocks never compare or hash payloads."""

    def __add__(self, other: Any, /) -> Any: ...


class Table(Generic[K, V]):
    """An immutable map with an order: the least recently used entry comes first. A change returns a new map.

    Tables are equal if their entries and their orders are equal. A change copies the dict, which takes a few microseconds at 512 entries.
    """

    __slots__ = ("_of",)

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        self._of: dict[K, V] = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._of[key]

    def get(self, key: K) -> V | None:
        """The value of `key`. None: the key is absent."""
        return self._of.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[K]:
        return iter(self._of)

    def items(self) -> Iterable[tuple[K, V]]:
        """Pairs in order."""
        return self._of.items()

    def first(self) -> K:
        """The first key, which is the least recently used one."""
        return next(iter(self._of))

    def put(self, key: K, value: V) -> Table[K, V]:
        """The table with `value` for `key`. An existing key keeps its place, a new key comes last."""
        return self._made(self._of | {key: value})

    def last(self, key: K, value: V) -> Table[K, V]:
        """The table with `value` for `key`, which comes last as the most recently used key."""
        if self._of.get(key) is value and next(reversed(self._of)) == key:
            return self  # packets of one token row often come one after the other
        of = self._of.copy()
        of.pop(key, None)
        of[key] = value
        return self._made(of)

    def without(self, key: K) -> Table[K, V]:
        """The table without `key`, which may be absent."""
        of = self._of.copy()
        of.pop(key, None)
        return self._made(of)

    def _made(self, of: dict[K, V]) -> Table[K, V]:
        table: Table[K, V] = Table.__new__(Table)
        table._of = of
        return table

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and tuple(self._of.items()) == tuple(other._of.items())

    def __hash__(self) -> int:
        return hash(tuple(self._of.items()))

    def __repr__(self) -> str:
        return f"Table({list(self._of.items())})"
