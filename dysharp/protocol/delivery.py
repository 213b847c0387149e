"""Delivery of messages over a network that loses, repeats and reorders them: one queue pair, as a pure state.

The sender numbers messages from 0. The receiver takes every number once, in any order. A message without an acknowledgement is
sent again with its number.
"""

from typing import NamedTuple


class TakenNumbers(NamedTuple):
    """Numbers that a receiver has taken: all below `below`, and the numbers in `beyond`."""

    below: int = 0
    beyond: frozenset[int] = frozenset()


def take(state: TakenNumbers, number: int) -> tuple[TakenNumbers, bool]:
    """A message with `number` arrives. Returns the state after it, and whether the message is new."""
    if number < state.below or number in state.beyond:
        return state, False
    below, beyond = state.below, state.beyond | {number}
    while below in beyond:
        beyond -= {below}
        below += 1
    return TakenNumbers(below, beyond), True


def overtakes(state: TakenNumbers, number: int) -> bool:
    """Whether a new message with `number` arrives before one that was sent earlier."""
    return number > state.below
