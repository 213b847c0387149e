"""`check`: explores one tiny machine completely and judges every end."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.protocol.checker.config import Config
from tests.protocol.checker.explore import Explored, explore
from tests.protocol.checker.machine import CheckedMachine, State
from tests.protocol.checker.reduction import Steps, enabled, reduced


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check. A complete search without a `reason` is a proof for this machine."""

    states: int
    transitions: int
    terminals: int
    complete: bool
    """Whether the search covered every order of events."""
    reason: str | None
    """The first fault. None: no fault."""
    path: tuple[str, ...]
    """The events that lead to the fault."""

    @property
    def ok(self) -> bool:
        """Whether the search was complete and met no fault."""
        return self.complete and self.reason is None

    def __str__(self) -> str:
        counts = f"{self.states} states, {self.transitions} transitions, {self.terminals} ends"
        if self.reason:
            return f"{counts} until {self.reason} after: {'; '.join(self.path)}"
        return f"{counts}, {'all explored' if self.complete else 'stopped'}"


def check(config: Config, *, reduce: bool = True, merge: bool = True, max_states: int = 10_000_000) -> Report:
    """Explore `config` and compare every end with the dense layer.

    `reduce`: take only the steps that `reduction` selects. `merge`: count states that behave alike as one (`canon`).
    Without both, the search is plain. It stops after `max_states` states.
    """
    seen = search(CheckedMachine(config, merge=merge), reduce=reduce, max_states=max_states)
    return Report(seen.states, seen.transitions, len(seen.terminals), seen.complete, seen.reason, seen.path)


def search(machine: CheckedMachine, *, reduce: bool = True, max_states: int = 10_000_000) -> Explored[State]:
    """The search of `check`. Its result holds the terminal states."""
    steps: Callable[[CheckedMachine, State], Steps] = reduced if reduce else enabled

    def successors(state: State) -> list[tuple[int, State]]:
        return [(event, machine.after(state, event, effect)) for event, effect in steps(machine, state)]

    return explore(machine.initial(), successors, machine.verdict, machine.name, max_states)
