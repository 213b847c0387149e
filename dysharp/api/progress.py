"""How far a long call is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """System `index` of `count` (from 1) is at `stage` ("routing", "plan", "engine", "analysis"), `done` of `total` ops (0 = unknown)."""

    system: str
    index: int
    count: int
    stage: str
    done: int = 0
    total: int = 0


Progress = Callable[[Step], None]
