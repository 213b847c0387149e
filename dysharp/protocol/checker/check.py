"""The verb: explore one tiny machine completely and judge every end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dysharp.protocol.checker.config import Config
from dysharp.protocol.checker.explore import Found, explore
from dysharp.protocol.checker.machine import CheckedMachine, State
from dysharp.protocol.checker.reduction import Steps, enabled, reduced


@dataclass(frozen=True, slots=True)
class Report:
    """`states`, `transitions` and `terminals` counted; `reason`: None, or what went wrong first, after the events of `path`.

    `complete`: every order of events was covered, so that no reason means a proof for this machine.
    """

    states: int
    transitions: int
    terminals: int
    complete: bool
    reason: str | None
    path: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all ends are right, and all were seen."""
        return self.complete and self.reason is None

    def __str__(self) -> str:
        counts = f"{self.states} states, {self.transitions} transitions, {self.terminals} ends"
        if self.reason:
            return f"{counts} until {self.reason} after: {'; '.join(self.path)}"
        return f"{counts}, {'all explored' if self.complete else 'stopped'}"


def check(config: Config, *, reduce: bool = True, merge: bool = True, max_states: int = 10_000_000) -> Report:
    """Explore `config` and compare every end with the dense layer.

    `reduce`: take only the steps of `reduction`; `merge`: count states that behave alike as one (`canon`). Both off is the plain search.
    """
    found = search(CheckedMachine(config, merge=merge), reduce=reduce, max_states=max_states)
    return Report(found.states, found.transitions, len(found.terminals), found.complete, found.reason, found.path)


def search(machine: CheckedMachine, *, reduce: bool = True, max_states: int = 10_000_000) -> Found[State]:
    """The search behind `check`, with the terminal states themselves."""
    steps: Callable[[CheckedMachine, State], Steps] = reduced if reduce else enabled

    def successors(state: State) -> list[tuple[int, State]]:
        return [(event, machine.after(state, event, effect)) for event, effect in steps(machine, state)]

    return explore(machine.initial(), successors, machine.verdict, machine.name, max_states)
