"""A fault planted in a function of a protocol block."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass, replace

import pytest


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in the source of `function` of `module`; `reason` begins what the check says on `machine`."""

    name: str
    module: types.ModuleType
    function: str
    old: str
    new: str
    machine: str
    reason: str


def plant(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    """Replace the function in its module. An `old` that is gone or vague is an error of the table above."""
    source = inspect.getsource(getattr(mutant.module, mutant.function))
    assert source.count(mutant.old) == 1, f"{mutant.name}: found {source.count(mutant.old)} times, expected once"
    space = mutant.module.__dict__ | {"replace": replace}
    exec(compile("from __future__ import annotations\n" + source.replace(mutant.old, mutant.new), mutant.name, "exec"), space)
    patch.setattr(mutant.module, mutant.function, space[mutant.function])
