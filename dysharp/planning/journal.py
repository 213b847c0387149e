"""Costs of a search in a `Store`, in parts: a search that is killed goes on where it was, on the same code and inputs."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dysharp.planning.cost import Coster
from dysharp.runs.key import Key
from dysharp.runs.store import Store
from dysharp.sources import code_digest

PART = 200
"""Costs of a part: a killed search repeats at most so many."""


class StoredJournal(dict[int, tuple[float, float]]):
    """{candidate: (microseconds of a step, bytes of the fullest rank)}. `read`: costs that an earlier search had."""

    def __init__(self, store: Store, asked: dict[str, Any]) -> None:
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

    def _key(self, part: int) -> Key:
        return Key(self.asked | {"part": part}, "", code_digest())


def journal_of(folder: Path, coster: Coster) -> StoredJournal:
    """The journal of a search in a folder of Rows or of a study."""
    return StoredJournal(Store(folder), asked_of(coster))


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
