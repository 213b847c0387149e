"""What the user says about a dump because the file itself cannot."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.errors import ConfigError
from dysharp.workload.npz import MAX_BYTES


@dataclass(frozen=True, slots=True)
class Hints:
    """None = the file tells, or it is not needed.

    `experts`: routed experts of a layer; `topk`: experts per token; `n_layers`: length of the file's layer axis where it is flat;
    `layers`: the layers to keep, by the file's numbers; `tokens`, `seed`: for files of counts, the tokens to draw and the seed they are
    drawn with; `model`: which model of a counts CSV that holds several; `max_bytes`: arrays above this are refused before they are read.
    """

    experts: int | None = None
    topk: int | None = None
    n_layers: int | None = None
    layers: tuple[int, ...] | None = None
    tokens: int | None = None
    seed: int = 0
    model: str = ""
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        for name in ("experts", "topk", "n_layers", "tokens", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"import: found {name} {value}, expected at least 1")
        if self.seed < 0:
            raise ConfigError(f"import: found seed {self.seed}, expected 0 or more")

    def need(self, name: str, where: str, beside: str = "") -> int:
        """The value of a hint that this file cannot do without; raises ConfigError naming the option."""
        value: int | None = getattr(self, name)
        if value is None:
            what = {"experts": "the number of experts", "topk": "top-k", "n_layers": "the number of layers"}[name]
            or_model = "" if name == "n_layers" else " or --model NAME"
            raise ConfigError(f"{where}: {what} is not in the file{beside}, expected --{name.replace('_', '-')} N{or_model}")
        return value
