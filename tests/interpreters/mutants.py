"""Mutants: the engine with one fault each. They measure how many faults the comparison with the oracle catches."""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from dysharp.base.errors import DysharpError
from dysharp.oracle import run_oracle
from dysharp.program import Program, Trace
from tests.interpreters.plain import PlainEngine, TooManySteps, source
from tests.interpreters.random_programs import random_program

MAX_STEPS = 400_000  # about ten times the steps of a tiny Program


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of `module`: `old`, which occurs exactly once, becomes `new`."""

    name: str
    module: str
    old: str
    new: str

    def text(self) -> str:
        """The changed source. Raises DysharpError unless `old` occurs exactly once."""
        text = source(self.module)
        if text.count(self.old) != 1:
            found = f"found {text.count(self.old)} times {self.old!r}"
            raise DysharpError(f"mutant {self.name!r}: {found}, expected once in {self.module}")
        return text.replace(self.old, self.new)


def engine(mutant: Mutant | None = None) -> PlainEngine:
    """The plain engine, with `mutant` if given."""
    return PlainEngine({mutant.module: mutant.text()} if mutant else None, MAX_STEPS)


def difference(plain: PlainEngine, program: Program, expected: Trace) -> str | None:
    """The difference of `plain` from `expected` on `program`: column, exception or deadlock; None if equal."""
    try:
        found = plain.run(program)
    except TooManySteps:
        return "never ends"
    except Exception as error:  # a mutant may break in any way
        return f"{type(error).__name__}: {error}"
    for f in fields(Trace):
        if f.name != "n_events" and not np.array_equal(getattr(found, f.name), getattr(expected, f.name)):
            return f"different column {f.name}"
    return None


@cache
def _expected(make: Callable[[int], Program], seed: int) -> tuple[Program, Trace]:
    program = make(seed)
    return program, run_oracle(program)


def caught(mutant: Mutant, seeds: Iterable[int], make: Callable[[int], Program] = random_program) -> tuple[int, str] | None:
    """(seed, difference) of the first random Program of `make` on which `mutant` differs from the oracle, else None."""
    plain = engine(mutant)
    for seed in seeds:
        how = difference(plain, *_expected(make, seed))
        if how:
            return seed, how
    return None


def _mutants(programs: str) -> tuple[Mutant, ...]:
    modules = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text(encoding="utf-8"))[programs]
    return tuple(Mutant(name, module, *texts) for module, named in modules.items() for name, texts in named.items())


KINDS = ("programs", "points", "sums", "loads", "bulk", "shares", "gates")
MUTANTS, POINT_MUTANTS, SUM_MUTANTS, LOAD_MUTANTS, BULK_MUTANTS, SHARE_MUTANTS, GATE_MUTANTS = map(_mutants, KINDS)
"""Told from the oracle by `random_program`, `random_points`, `random_sums`, `random_loads`, `random_bulk`, `random_shares` and `random_gates`."""
