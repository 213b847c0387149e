"""The load of a workload as the report draws it: tokens per pair of GPUs, rows per expert, rows per GPU."""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.load import Load, load_of
from dysharp.errors import ConfigError
from dysharp.specs import list_models, load_model
from dysharp.workload import Routing, make_routing

LEVELS = 8
"""Colours of a heat map."""
MOST_GPUS = 128


@dataclass(frozen=True, slots=True)
class LoadView:
    """Drawings of a load.

    pairs        for each colour, the SVG path of the pairs of GPUs that have it; the diagonal is left out
    bounds       (lowest, highest) tokens of each colour
    gpus         number of GPUs
    busiest      (source, destination, tokens) of the busiest pair; None on one GPU
    experts      SVG path of the bars of experts, 1000 wide and 100 high
    most_expert  (expert, rows) of the busiest expert
    rows         useful rows of each GPU
    spread       busiest over mean: rows of experts, rows of GPUs, tokens of pairs
    nics         busiest over mean of the NICs' rows: (out, in); None in one NVLink domain
    """

    pairs: tuple[str, ...]
    bounds: tuple[tuple[int, int], ...]
    gpus: int
    busiest: tuple[int, int, int] | None
    experts: str
    most_expert: tuple[int, int]
    rows: tuple[int, ...]
    spread: tuple[float, float, float]
    nics: tuple[float, float] | None = None


@lru_cache(maxsize=32)
def load_view(model: str, gpus: int, tokens: int, routing: str, seed: int, layer: int | None, domain_gpus: int = 0) -> LoadView:
    """The load of a workload by the names in its Row. Raises ConfigError where it cannot be drawn again."""
    if model not in list_models():  # a Row of somebody else names no file that is opened here
        raise ConfigError(f"report: found model {model[:60]!r}, expected a packaged name")
    known = load_model(model)
    for source in dict.fromkeys((known.routing, routing.removesuffix(" (synthetic)"))):
        with suppress(ConfigError):
            found = make_routing(source, known, gpus, tokens, seed=seed, layer=layer)
            if found.description == routing:
                return load_view_of(found, domain_gpus)
    raise ConfigError(f"report: found routing {routing[:60]!r}, expected one that can be drawn again")


def load_view_of(routing: Routing, domain_gpus: int = 0) -> LoadView:
    """The drawings of a Routing. `domain_gpus`: GPUs of an NVLink domain; 0 = all."""
    load = load_of(routing, domain_gpus)
    chosen = routing.expert[routing.expert >= 0]
    per_expert = np.bincount(chosen, minlength=routing.n_experts)
    pairs, bounds = _heat(load)
    busiest = None
    if len(load.rows) > 1:
        source, destination = load.busiest_pair
        busiest = (source, destination, int(load.pairs[source, destination]))
    mean = float(per_expert.mean())
    return LoadView(
        pairs, bounds, len(load.rows), busiest, _bars(per_expert), (int(per_expert.argmax()), int(per_expert.max())),
        tuple(load.rows.tolist()), (float(per_expert.max() / mean) if mean else 1.0, load.rows_max_mean, load.pair_max_mean),
        load.nics_max_mean,
    )  # fmt: skip


def _heat(load: Load) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """A path of unit squares for each colour, and the tokens that the colour stands for. Row: source; column: destination."""
    n = len(load.rows)
    if n > MOST_GPUS or n < 2:
        return (), ()
    off = ~np.eye(n, dtype=bool)
    low, high = int(load.pairs[off].min()), int(load.pairs[off].max())
    step = max(1, -(-(high - low + 1) // LEVELS))
    level = np.where(off, (load.pairs - low) // step, -1)
    paths, bounds = [], []
    for k in range(LEVELS):
        if low + k * step > high:
            break
        paths.append("".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(level == k).tolist()))
        bounds.append((low + k * step, min(high, low + (k + 1) * step - 1)))
    return tuple(paths), tuple(bounds)


def _bars(values: NDArray[Any]) -> str:
    """A path of bars, 1000 wide and 100 high together."""
    n, most = len(values), max(1, int(values.max(initial=0)))
    width = 1000 / n
    return "".join(f"M{i * width:.1f} 100v-{100 * value / most:.1f}h{width * 0.85:.1f}V100z" for i, value in enumerate(values.tolist()) if value)
