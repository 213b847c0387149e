"""Faults planted in the blocks of hardware: the comparison with the model finds each, and the proofs find those that break a promise."""

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dysharp.base import SimulationError, frozen, read_toml
from dysharp.silicon.rtl.blocks import load_block
from dysharp.silicon.rtl.check import check_block
from dysharp.silicon.rtl.formal import proves


@frozen
class Fault:
    """In the source of `where` ("module.class.method"), `new` takes the place of `old`."""

    block: str
    where: str
    old: str
    new: str


COMPARED, PROVEN = ([Fault(*fault) for fault in faults] for faults in read_toml(Path(__file__).with_suffix(".toml")).values())


@contextmanager
def _planted(fault: Fault) -> Iterator[None]:
    """The block with the fault. An `old` that is gone or vague is an error of the tables above."""
    module, of, name = fault.where.split(".")
    cls = getattr(importlib.import_module(f"dysharp.silicon.rtl.{module}"), of)
    whole = getattr(cls, name)
    source = textwrap.dedent(inspect.getsource(whole))
    assert source.count(fault.old) == 1, f"{cls.__name__}: {fault.old!r}: found {source.count(fault.old)} times, expected once"
    space = dict(vars(sys.modules[cls.__module__]))
    exec(compile("from __future__ import annotations\n" + source.replace(fault.old, fault.new), cls.__name__, "exec"), space)
    setattr(cls, name, space[name])
    try:
        yield
    finally:
        setattr(cls, name, whole)


def _differs(fault: Fault) -> bool:
    """Whether block and model differ in 150 sequences of 40 cycles."""
    with _planted(fault):
        try:
            check_block(load_block(fault.block), 150, cycles=40)
        except SimulationError:
            return True
    return False


def _has_no_proof(fault: Fault) -> bool:
    """Whether a promise of the block no longer holds."""
    with _planted(fault):
        return not all(proves(proof()) for proof in load_block(fault.block).proofs)


def found(block: str) -> dict[str, tuple[int, int]]:
    """(found, planted) faults of a block, by what looks for them."""
    looks = {"comparison": (_differs, COMPARED), "proofs": (_has_no_proof, PROVEN)}
    done = {}
    for by, (look, faults) in looks.items():
        results = [look(fault) for fault in faults if fault.block == block]
        done[by] = sum(results), len(results)
    return done
