"""Where overlap and the switch pay: gains over tokens per GPU and five inputs of a layer, from closed forms that runs confirm."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dysharp.base import ByName, ConfigError, Numbers, frozen, named
from dysharp.planning.gain import EVEN, MECHANISMS, gains, layer_us
from dysharp.runs import Request
from dysharp.specs import Cluster, Model
from dysharp.workload import make_routing

TOKENS = (16, 32, 64, 128, 256, 512, 1024)
QUARTERS = (1, 2, 4, 8, 16)
ROUTINGS = ("uniform", "powerlaw:0.5", "powerlaw:1", "powerlaw:1.5")
GPUS = (4, 8, 16, 32, 64)

Gains = Mapping[str, list[float]]
"""{mechanism: its gain for each of `TOKENS`}; 0.1: 10 % faster than the best system without it."""


@frozen
class GainMap:
    """Gains of each mechanism over the best system without it. `Comparison.gain_map`.

    tokens     tokens per GPU
    own        gains of the layer asked for, in closed form
    panels     {input: {its value: gains}}
    confirmed  {tokens: (gain of the switch in closed form, simulated)}: at the ends of `own`, and where it passes `EVEN`
    """

    tokens: Numbers
    own: Gains
    panels: Mapping[str, Mapping[float, Gains]]
    confirmed: Mapping[int, tuple[float, float]]

    @property
    def sentence(self) -> str:
        """From how many tokens on each mechanism pays, and what the runs say."""
        pays = [f"{name} {f'from {start}' if (start := self.start(self.own[name])) else 'nowhere'}" for name in self.own]
        runs = ", ".join(f"{run:+.0%} at {tokens} (closed form {form:+.0%})" for tokens, (form, run) in self.confirmed.items())
        return f"More than {EVEN:.0%} by tokens per GPU: {', '.join(pays)}. Runs of the switch: {runs}."

    def start(self, line: list[float]) -> int | None:
        """The tokens from which on all gains of `line` are above `EVEN`; None: the last is not."""
        below = [i for i, gain in enumerate(line) if gain <= EVEN]
        return self.tokens[below[-1] + 1] if below and below[-1] + 1 < len(line) else None if below else self.tokens[0]

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        return named(self, "tokens", "own", "panels", "confirmed", "sentence")


def gain_map(asked: Request, run: Callable[[int], Mapping[str, float]]) -> GainMap:
    """The map of a forward layer with drawn routing. `run`: {system: us} of `gain.SYSTEMS` at so many tokens, simulated.

    Raises ConfigError for other layers, for what closed forms leave out, and for a cluster other than a paper cluster of one domain with switches.
    """
    cluster, text = asked.cluster, asked.routing
    may_vary = isinstance(text, str) and text.partition(":")[0] in ("uniform", "powerlaw", "normal", "lognormal")
    if cluster.family == "hw" or cluster.domains > 1 or cluster.nvlink_gpus == 1 or asked.direction != "fwd" or not may_vary:
        found = f"{cluster.name}, {asked.direction}, routing {text if isinstance(text, str) else text.description}"
        raise ConfigError(f"map: found {found}, expected a paper cluster of one NVLink domain with switches, fwd, and a drawn routing")
    told = {"slow or late ranks": asked.skew, "a placement": asked.placement != "auto", "a layer": asked.layer is not None}
    if beyond := [*(key for key in asked.options if not key.endswith(".form")), *filter(told.get, told)]:
        raise ConfigError(f"map: found {', '.join(beyond)}, expected none, which its closed forms leave out")
    seen: dict[tuple[Any, ...], Gains] = {}

    def line(model: Model, machine: Cluster, routing: str) -> Gains:
        key = model, machine, routing
        if key not in seen:
            drawn = (make_routing(routing, model, machine.n_gpus, tokens, seed=asked.seed) for tokens in TOKENS)
            found = [gains(layer_us(model, machine, one)) for one in drawn]
            seen[key] = {name: [one[name] for one in found] for name in MECHANISMS}
        return seen[key]

    own, panels = line(asked.model, cluster, str(text)), dict[str, dict[float, Gains]]()
    for name, value, model, machine, routing in _variants(asked.model, cluster, str(text)):
        panels.setdefault(name, {})[value] = line(model, machine, routing)
    gain = dict(zip(TOKENS, own["switch"], strict=True))
    edges = {tokens for pair in pairwise(TOKENS) for tokens in pair if (gain[pair[0]] > EVEN) != (gain[pair[1]] > EVEN)}
    return GainMap(TOKENS, own, panels, {n: (gain[n], gains(run(n))["switch"]) for n in sorted({TOKENS[0], TOKENS[-1]} | edges)})


def _variants(model: Model, cluster: Cluster, routing: str) -> Iterator[tuple[str, float, Model, Cluster, str]]:
    """(input, value, model, cluster, routing); values that no layer can have are left out."""
    for quarters in QUARTERS:
        topk, experts, rate = (one * quarters // 4 for one in (model.topk, model.n_experts, cluster.link_bytes_per_us))
        if 0 < topk <= model.n_experts:
            yield "top-k", topk, replace(model, topk=topk), cluster, routing
        if experts >= model.topk and experts % cluster.n_gpus == 0:
            yield "experts", experts, replace(model, n_experts=experts), cluster, routing
        yield "link GB/s", rate / 1000, model, replace(cluster, link_bytes_per_us=rate), routing
    for gpus in GPUS:
        if gpus <= (cluster.max_gpus or cluster.n_gpus) and model.n_experts % gpus == 0:
            yield "GPUs", gpus, model, cluster.with_gpus(gpus), routing
    for text in ROUTINGS:
        yield "skew", float(text.partition(":")[2] or 0), model, cluster, text
