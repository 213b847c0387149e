"""Costs of a search in a `Store`, in parts: a search that is killed goes on where it was, on the same code and inputs."""

from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dysharp.planning.cost import Coster
from dysharp.runs.key import Key
from dysharp.runs.store import Store
from dysharp.sources import code_digest

PART = 200
"""Costs of a part: a killed search repeats at most so many."""


@dataclass(slots=True)
class StoredJournal(MutableMapping[int, tuple[float, float]]):
    """{candidate: (microseconds of a step, bytes of the fullest rank)}. `read`: costs that an earlier search had."""

    store: Store
    asked: dict[str, Any]
    read: int = 0
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)
    _new: dict[int, tuple[float, float]] = field(default_factory=dict)
    _parts: int = 0

    def __getitem__(self, number: int) -> tuple[float, float]:
        return self._known[number]

    def __setitem__(self, number: int, cost: tuple[float, float]) -> None:
        self._known[number] = self._new[number] = cost
        if len(self._new) >= PART:
            self.flush()

    def __delitem__(self, number: int) -> None:
        del self._known[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def flush(self) -> None:
        """Write what is new as a part."""
        if self._new:
            self.store.put(self._key(self._parts), {"costs": [[number, *cost] for number, cost in self._new.items()]})
            self._parts += 1
            self._new = {}

    def _key(self, part: int) -> Key:
        return Key(self.asked | {"part": part}, "", code_digest())

    def load(self) -> "StoredJournal":
        """The same with the parts of earlier searches."""
        while (found := self.store.get(self._key(self._parts))) is not None:
            self._known.update({int(number): (step, peak) for number, step, peak in found["costs"]})
            self._parts += 1
        self.read = len(self._known)
        return self


def journal_of(folder: Path, coster: Coster) -> StoredJournal:
    """The journal of a search in a folder of Rows or of a study."""
    return StoredJournal(Store(folder), asked_of(coster)).load()


def asked_of(coster: Coster) -> dict[str, Any]:
    """All that the costs of a search depend on, as plain values."""
    task, space = asdict(coster.task), {name: [list(v) if isinstance(v, tuple) else v for v in values] for name, values in coster.space.lists.items()}
    rows = sorted([*map(str, key), *asdict(ep).values()] for key, ep in coster.rows.items())
    return {"plan": plain(task), "space": plain(space), "cluster": plain(asdict(coster.machine.cluster)), "rows": plain(rows)}


def plain(value: Any) -> Any:
    """`value` as JSON reads it back."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
