"""`Hints`: numbers that the user gives because the dump does not contain them."""

from dataclasses import dataclass

from dysharp.errors import ConfigError
from dysharp.workload.npz import MAX_BYTES


@dataclass(frozen=True, slots=True)
class Hints:
    """Numbers from the user. None: the dump contains the number, or the format does not need it."""

    experts: int | None = None
    """Routed experts of a layer."""
    topk: int | None = None
    """Experts per token."""
    n_layers: int | None = None
    """Length of the layer axis, for flat data."""
    layers: tuple[int, ...] | None = None
    """The layers to keep, by the numbers of the file. None: all layers."""
    tokens: int | None = None
    """For counts: the number of tokens to draw."""
    seed: int = 0
    """For counts: the seed of the draw."""
    model: str = ""
    """For a CSV of counts of several models: the model to take."""
    max_bytes: int = MAX_BYTES
    """Larger arrays are refused before they are read."""

    def __post_init__(self) -> None:
        for name in ("experts", "topk", "n_layers", "tokens", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"import: found {name} {value}, expected at least 1")
        if self.seed < 0:
            raise ConfigError(f"import: found seed {self.seed}, expected 0 or more")

    def need(self, name: str, where: str, beside: str = "") -> int:
        """The value of the hint `name`. Raises ConfigError that names the option if the user gave none."""
        value: int | None = getattr(self, name)
        if value is None:
            what = {"experts": "the number of experts", "topk": "top-k", "n_layers": "the number of layers"}[name]
            or_model = "" if name == "n_layers" else " or --model NAME"
            raise ConfigError(f"{where}: {what} is not in the file{beside}, expected --{name.replace('_', '-')} N{or_model}")
        return value
