"""Expressions that record the order of a sum, and their evaluation on independently computed rows.

An expression is a nested tuple. Its head names the place of the sum, which decides the rounding (docs/design/0004, Numbers):

| expression | sum | rounded |
|---|---|---|
| `("hub", gpu, (slot, ...))` | rows of local experts | yes |
| `("switch", parts)` | sums of hubs | yes |
| `("partial", parts)` | sum of a switch, sent before it was complete | no |
| `("relay", parts)` | sum of a domain's GPUs at the GPU that forwards it | yes |
| `("source", parts)` | final value | yes |

A further word of a hub or a switch is the format into which its sum is converted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dysharp.base import Array, ConfigError
from dysharp.functional.numbers import Number
from dysharp.functional.wire import rounded
from dysharp.program import Kind, Program

Expression = tuple[Any, ...]
Term = tuple[Array, Expression]
"""A value, and how it was made."""


def slots_of(expression: Expression) -> Iterator[int]:
    """The expert slots in an expression, in order, repeats included."""
    if expression[0] == "hub":
        yield from expression[2]
    else:
        for part in expression[1]:
            yield from slots_of(part)


def add_in_order(parts: list[Array], width: int, number: Number) -> Array:
    """`[width]` sum from left to right in the work dtype; zeros if there are no parts."""
    if not parts:
        return np.zeros(width, number.work)
    total = number.load(parts[0])
    for part in parts[1:]:
        total = total + number.load(part)
    return total


def evaluate(expression: Expression, row: Callable[[int], Array], width: int, number: Number) -> Array:
    """`[width]` value of an expression. `row(slot)`: stored row of an expert slot.

    Partial sums stay in the work dtype.
    """
    if expression[0] == "hub":
        return rounded(number, "".join(expression[3:]), add_in_order([row(slot) for slot in expression[2]], width, number))
    total = add_in_order([evaluate(part, row, width, number) for part in expression[1]], width, number)
    return total if expression[0] == "partial" else rounded(number, "".join(expression[2:]), total)


class Sums:
    """Sums of PUSH_REDUCEs in the switch, with the places of their homes (docs/design/0002).

    Raises ConfigError for a contribution of the home itself, because it is a store.
    """

    def __init__(self, program: Program) -> None:
        p, self.places = program, 0
        self._gate, self._n_nodes = None if p.ops.gate is None else p.ops.gate.tolist(), p.n_nodes
        self._node = p.ops.node.tolist()
        ops = np.flatnonzero(p.kinds() == Kind.PUSH_REDUCE)
        if len(ops) == 0 or p.sessions is None or p.ops.session is None:
            return
        local = ops[p.members.node[p.members.ptr[ops]] == p.ops.node[ops]]
        if len(local):
            raise ConfigError(f"functional machine: op {local[0]}: found a contribution of the sum's home, expected a store")
        self.places = p.sessions.places
        self._session, self._home, self._expected = p.ops.session.tolist(), p.sessions.home.tolist(), p.sessions.expected.tolist()
        self._open: dict[int, int] = defaultdict(int)
        self._added: dict[int, bool] = {}
        self._parts: dict[int, dict[int, Term]] = defaultdict(dict)

    def gate(self, op: int, node: int) -> int:
        """The session whose gate a copy of `op` to `node` passes, -1 = none."""
        return -1 if self._gate is None or self._gate[op] < 0 or node == self._node[op] else self._gate[op] + node

    def is_open(self, gate: int) -> bool:
        """Whether the sums of the gate's node and of the node behind it are complete."""
        behind = gate - self._home[gate] + (self._home[gate] + 1) % self._n_nodes
        return all(len(self._parts[s]) == self._expected[s] for s in (gate, behind))

    def add(self, op: int, value: Term) -> tuple[bool, dict[int, Term], bool]:
        """Add a contribution. Returns (whether its sum has a place, the contributions so far by op in order of arrival, whether it is the last)."""
        s = self._session[op]
        home = self._home[s]
        if s not in self._added:
            self._added[s] = self.places == 0 or self._open[home] < self.places
            self._open[home] += self._added[s]
        self._parts[s][op] = value
        is_last = len(self._parts[s]) == self._expected[s]
        if is_last and self._added[s]:
            self._open[home] -= 1
        return self._added[s], self._parts[s], is_last
