"""The phases of a model's life: what they mean for tokens, passes and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dysharp.base import ConfigError, entry_of, frozen
from dysharp.systems.facts import PHASES

if TYPE_CHECKING:
    from dysharp.workload import Routing


@frozen
class Phase:
    """Defaults of one phase. `tokens`: tokens per GPU. `direction`: passes. `words`: the phase in printed text."""

    name: str
    tokens: int
    direction: str
    words: str


_PHASES = {
    "decode": Phase("decode", 128, "fwd", "decode: one token of each of many requests, forward"),
    "prefill": Phase("prefill", 4096, "fwd", "prefill: whole prompts, forward"),
    "train": Phase("train", 4096, "both", "training: forward and backward"),
}
assert tuple(_PHASES) == PHASES


def get_phase(name: str) -> Phase:
    """The phase called `name`. Raises ConfigError, which names the nearest known phase."""
    return entry_of(name, _PHASES, f"phase: found {name[:60]!r}")


def replayed(phase: Phase, routing: str | Routing) -> str | Routing:
    """The routing of a phase: a recording in decode gives one token of each of many requests, unless the string says otherwise."""
    if phase.name != "decode" or not isinstance(routing, str) or not routing.startswith("trace:") or ":window=" in routing:
        return routing
    return f"{routing}:window=decode"


def passes_of(phase: Phase, direction: str) -> str:
    """The passes to simulate, by phase; in training also "bwd" where the caller asks for it.

    Raises ConfigError for a backward pass of another phase.
    """
    if phase.name == "train":
        return "bwd" if direction == "bwd" else phase.direction
    if direction != "fwd":
        raise ConfigError(f'direction: found "{direction}" in phase {phase.name}, expected "fwd" (only phase train has backward passes)')
    return phase.direction
