"""Which messages between NVLink domains a fault strikes, and errors of tensors that are zero: by hand."""

from __future__ import annotations

import numpy as np

from dysharp.functional.emulation import _Errors
from dysharp.functional.faults import Faults
from dysharp.functional.queue_pairs import Arrival, Messages


def test_faults_of_one_period_strike_different_messages() -> None:
    """Of three arrivals the first waits for others, the acknowledgement of the second is lost, the third is lost itself."""
    messages = Messages(Faults(lose_every=3, unheard_every=3, late_every=3))
    found = []
    for member in range(6):
        messages.send(member, (1, 0, 1))
        arrival = messages.arrive(member, (1, 0, 1))
        found.append((arrival, messages.injected["nic-lose"], messages.injected["nic-retry"]))
    gone, unheard = Arrival.GONE, Arrival.UNHEARD
    assert found == [(gone, 0, 0), (unheard, 0, 1), (gone, 1, 1), (gone, 1, 1), (unheard, 1, 2), (gone, 2, 2)]


def test_every_second_message_is_lost_and_comes_again() -> None:
    messages = Messages(Faults(lose_every=2))
    for member in range(3):
        messages.send(member, (1, 0, 1))
    assert [messages.arrive(member, (1, 0, 1)) for member in (0, 1, 1, 2, 2)] == [
        Arrival.TAKEN, Arrival.GONE, Arrival.TAKEN, Arrival.GONE, Arrival.TAKEN,
    ]  # fmt: skip


def test_zeros_are_right_and_anything_beside_zeros_is_wholly_wrong() -> None:
    zeros, errors = np.zeros(3), _Errors()
    errors.see(zeros, zeros)
    assert (errors.absolute, errors.relative) == (0.0, 0.0)
    errors.see(np.array([2.0, 4.5]), np.array([2.0, 5.0]))
    assert (errors.absolute, errors.relative) == (0.5, 0.1)
    errors.see(np.array([1e-9, 0.0]), np.zeros(2))
    assert errors.relative == np.inf
