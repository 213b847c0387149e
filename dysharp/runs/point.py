"""A point: one simulation as plain values, so that it can be stored, sent and run anywhere."""

from pathlib import Path
from typing import Any

from dysharp.base import frozen
from dysharp.runs.arguments import DEFAULT_CLUSTER
from dysharp.workload import OPERATIONS, SUB_LAYER

DIRECTIONS = ("fwd", "bwd", "both")
FIDELITIES = ("burst", "packet")


def is_workload(model: str) -> bool:
    """Whether the model of a point is the text of a sub-layer or a collective."""
    return model.partition(":")[0] in (SUB_LAYER, *OPERATIONS) and ":" in model


@frozen
class Point:
    """One simulation: the arguments of `dysharp run`, and free choices that differ from `specs/data/choices.toml`.

    `model`: a model, or the text of a workload such as "sub-layer:llama-7b:L1".

    `options`: {option: value} of the system, `choices`: {name: value}; both are sorted tuples of pairs. `gpus`, `tokens` (per GPU): None = default.
    """

    system: str
    model: str
    cluster: str
    routing: str  # "" = the model's default routing
    seed: int = 0
    gpus: int | None = None
    tokens: int | None = None
    options: tuple[tuple[str, Any], ...] = ()
    choices: tuple[tuple[str, Any], ...] = ()
    direction: str = "fwd"
    fidelity: str = "burst"

    def command(self) -> list[str]:
        """Arguments of the `dysharp` command that prints this point.

        `choices` are left out, because they have no flag.
        """
        asked = "--workload" if is_workload(self.model) else "--model"
        words = ["run", self.system, asked, self.model, "--cluster", self.cluster, "--seed", str(self.seed)]
        for flag, value in (
            ("--routing", self.routing),
            ("--gpus", self.gpus),
            ("--tokens", self.tokens),
            ("--direction", self.direction if self.direction != "fwd" else ""),
            ("--fidelity", self.fidelity if self.fidelity != "burst" else ""),
        ):
            words += [flag, str(value)] if value else []
        for name, value in self.options:
            place = "" if name.startswith("fabric.") else f"{self.system}."
            words += ["--set", f"{place}{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return [*words, "--json"]

    @property
    def label(self) -> str:
        """Short text for tables: system, model, and all fields without their default."""
        cluster = "" if self.cluster == DEFAULT_CLUSTER else Path(self.cluster).name
        words = [self.system, Path(self.model).name, cluster, self.routing]
        words += [f"{n} {what}" for n, what in ((self.gpus, "GPUs"), (self.tokens, "tokens per GPU")) if n is not None]
        words += [f"seed {self.seed}"] if self.seed else []
        words += [self.direction] if self.direction != "fwd" else []
        words += [self.fidelity] if self.fidelity != "burst" else []
        return " ".join(filter(None, [*words, *(f"{name}={value}" for name, value in self.options + self.choices)]))

    @property
    def workload(self) -> tuple[Any, ...]:
        """The fields that two points must share for a comparison of their systems."""
        return self.model, self.cluster, self.routing, self.seed, self.gpus, self.tokens, self.direction, self.fidelity
