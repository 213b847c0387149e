"""Messages between NVLink domains: lost, repeated and reordered ones do not change tensors; a receiver without numbers is noticed."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest

from dysharp.base.errors import EmulationMismatch
from dysharp.functional import queue_pairs
from dysharp.functional.emulation import Emulation, Shape, run_emulation
from dysharp.functional.faults import SCALE_OUT, machine_faults
from dysharp.functional.machine import Machine
from dysharp.protocol.delivery import TakenNumbers, overtakes, take
from dysharp.specs import Cluster, load_cluster
from dysharp.specs.cluster import ScaleOut
from dysharp.systems import all_systems

SYSTEMS = sorted(name for name, system in all_systems().items() if system.reach.domains)
SHAPE = Shape(32, 32, 16, 4)


def two_by_two() -> Cluster:
    return replace(load_cluster("paper-dgx-h100"), n_gpus=4, max_gpus=4, scale_out=ScaleOut(2, 47.0, 8.0))


def emulated(system: str, kinds: tuple[str, ...], block: str = "gated", order: str = "random", tokens: int = 4) -> Emulation:
    machine = Machine(system=system, gpus=4, cluster=two_by_two(), order=order, seed=1, faults=machine_faults(kinds))
    return run_emulation(machine, block, SHAPE, tokens=tokens, dtype=None, backward=True, kinds=kinds)


def test_every_message_is_taken_once_in_any_order():
    """All orders of three messages, each sent once or twice."""
    for copies in product((1, 2), repeat=3):
        sent = [number for number, n in enumerate(copies) for _ in range(n)]
        for order in set(permutations(sent)):
            state, taken = TakenNumbers(), []
            for number in order:
                late = overtakes(state, number)
                state, new = take(state, number)
                if new:
                    assert late == (not set(range(number)) <= set(taken))
                    taken.append(number)
            assert sorted(taken) == [0, 1, 2]
            assert state == TakenNumbers(3)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("block", ["integer", "gated"])
def test_tensors_under_every_fault(system, block):
    done = emulated(system, tuple(SCALE_OUT), block)
    assert done.holds
    assert all(times > 0 for times in done.injected.values()), done.injected


@pytest.mark.parametrize("order", ["oldest", "newest", "late-delivery", "late-completion"])
@pytest.mark.parametrize("kind", sorted(SCALE_OUT))
def test_tensors_in_every_order(kind, order):
    assert emulated("deepep", (kind,), order=order).holds


def test_a_receiver_that_takes_a_message_twice_is_noticed(monkeypatch):
    monkeypatch.setattr(queue_pairs, "take", lambda state, number: (state, True))
    with pytest.raises(EmulationMismatch, match=r"found \d+ B more than its \d+ B, expected every byte once"):
        emulated("deepep", ("nic-retry",))


def test_a_message_that_nobody_sends_again_is_noticed(monkeypatch):
    monkeypatch.setattr("dysharp.functional.rows.RowMachine._arrives", lambda self, member, way: (not self.net[self.owner[member]],) * 2)
    with pytest.raises(EmulationMismatch, match=r"watchdog: found .* ops that wait for ever"):
        emulated("deepep", ("nic-lose",))
