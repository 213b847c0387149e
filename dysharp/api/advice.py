"""`advise`: which EP system to run on a machine, what limits it, and what would help."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from dysharp.analysis.load import Load, eplb_spec, load_of
from dysharp.api.candidates import candidates, options_by_system, sms_to_try
from dysharp.api.header import header_of
from dysharp.api.options import Value
from dysharp.api.prediction import KNOB, AdviceRuns, Predicted
from dysharp.api.request import ModelSource, SharedArgs, make_request, takes
from dysharp.api.what_if import WhatIf, what_ifs
from dysharp.errors import ConfigError
from dysharp.measured.trust import PredictionScope, whole_layers
from dysharp.systems import System, get_system

DEFAULT_CLUSTER = "hw-dgx-h100"
WHAT_IFS = 8  # approximate number of what-ifs, for the progress bar
PARTS = {"other": "software", "around": "outside kernels"}
"""Parts of `Predicted.parts_us` that are printed under another name."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What `dysharp advise` prints; `to_dict` is its `--json`.

    ranking     predictions, fastest first
    not_ranked  {system: reason}
    load        load of GPUs and GPU pairs, under the placement asked for and under EPLB's
    what_if     one change each, compared with the first of the ranking
    header      lines that say what the numbers rest on
    layers      errors of whole eager layers like this one on this GPU (`trust.FamilyErrors`), a check of the sum; None without measurements
    """

    ranking: tuple[Predicted, ...]
    not_ranked: Mapping[str, str]
    load: tuple[Load, ...]
    what_if: tuple[WhatIf, ...]
    header: tuple[str, ...]
    layers: Mapping[str, Any] | None

    @property
    def best(self) -> Predicted:
        """The first of the ranking."""
        return self.ranking[0]

    @property
    def sentence(self) -> str:
        """Where the time of the best system goes, and how much of it communication takes."""
        best, row = self.best, self.best.row
        bar = best.bar()
        within = f" (90 % within {bar[0]:.0f} to {bar[1]:.0f} us)" if bar else ""
        parts = ", ".join(f"{PARTS.get(name, name)} {us:.0f} us ({us / best.time_us:.0%})" for name, us in best.parts_us().items())
        bound = next((entry.predicted.time_us for entry in self.what_if if get_system(entry.predicted.row.system).bound), None)
        free = "" if bound is None else f" With communication for free the layer takes {bound:.0f} us."
        return (
            f"{row.system} takes {best.time_us:.0f} us{within}. Its critical path: {parts}. "
            f"The busiest resource is {row.bound_resource} ({row.bound_us / row.simulated_us:.0%} of the simulated time).{free}"
        )

    def ties(self) -> tuple[str, ...]:
        """The first system with an error bar and the systems whose bars overlap that bar: which is faster is not known. () without overlap."""
        bars = [(entry.row.system, bar) for entry in self.ranking if (bar := entry.bar()) is not None]
        names = tuple(name for name, bar in bars if bar[0] <= bars[0][1][1])
        return names if len(names) > 1 else ()

    def limits(self) -> dict[str, Any]:
        """Where the time of the best system goes, as plain values."""
        row = self.best.row
        names = ("system", "bound_us", "bound_resource", "bound_terms", "workload_bound_us", "attribution", "utilization", "exposed_comm_us")
        values = {name: getattr(row, name) for name in names}
        return values | {"surroundings_us": self.best.around.to_dict(), "load": [load.to_dict() for load in self.load], "sentence": self.sentence}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "ranking": [entry.to_dict() for entry in self.ranking],
            "limits": self.limits(),
            "what_if": [entry.to_dict() for entry in self.what_if],
            "ties": list(self.ties()),
            "not_ranked": dict(self.not_ranked),
            "layer_errors": None if self.layers is None else dict(self.layers),
            "header": list(self.header),
        }


@takes(SharedArgs, cluster=DEFAULT_CLUSTER)
def advise(model: ModelSource, *, systems: Sequence[str] | None = None, **request: Unpack[SharedArgs]) -> Advice:
    """Rank the EP systems that run on a machine today, say what limits the best, and what changes would bring.

    `model`: name of a packaged model, a TOML file, a Hugging Face `config.json`, or a `Model`. `systems`: names; None: all systems with a
    real form. `cluster` must be an hw-* cluster. Each system sends the formats that it ships with. Where its option `n_sm` is not given,
    values in the measured range are tried.
    Raises TypeError for an unknown argument, ConfigError for wrong input or when no system runs.
    """
    asked = make_request({**request, "model": model, "window": None, "start": None, "slow": None})
    if asked.cluster.family != "hw":
        raise ConfigError(f'advise: found cluster "{asked.cluster.name}" of the {asked.cluster.family} family, expected an hw-* cluster')
    chosen, not_ranked = candidates(systems, asked)
    options, with_options = options_by_system(chosen, asked)
    chosen = {name: system for name, system in chosen.items() if name not in not_ranked}
    runs = AdviceRuns(asked, sum(max(1, len(sms_to_try(system, asked))) for system in chosen.values()) + WHAT_IFS)
    workload = runs.workload()  # an error in the routing is an error for every system
    ranking = []
    for name, system in chosen.items():
        try:
            ranking.append(_fastest(runs, system, options[name]))
        except ConfigError as error:
            if systems is not None or name in with_options:
                raise
            not_ranked[name] = str(error)
    if not ranking:
        reasons = "; ".join(f"{name}: {why}" for name, why in not_ranked.items())
        raise ConfigError(f"advise: no system runs this on {asked.cluster.name}: {reasons}")
    ranking.sort(key=lambda entry: entry.time_us)
    best = ranking[0].row
    layers = whole_layers(PredictionScope(best.system, asked.model, asked.cluster, asked.tokens, asked.direction, best.options))
    return Advice(
        ranking=tuple(ranking),
        not_ranked=not_ranked,
        load=tuple(load_of(r) for r in (workload.routing, runs.workload(placement=eplb_spec(workload.routing)).routing)),
        what_if=what_ifs(runs, ranking[0]),
        header=(*header_of(workload), *(f"warning: {text}" for text in runs.memory_warning)),
        layers=None if layers is None else dataclasses.asdict(layers),
    )


def _fastest(runs: AdviceRuns, system: System, options: Mapping[str, Value]) -> Predicted:
    """The fastest of the numbers of SMs to try; a number that is given is kept."""
    numbers = () if KNOB in options else sms_to_try(system, runs.request)
    if not numbers:
        return runs.run(system.name, options)
    predicted = {n: runs.run(system.name, {**options, KNOB: n}) for n in numbers}
    best = min(predicted, key=lambda n: (predicted[n].time_us, n))
    return dataclasses.replace(predicted[best], tried={n: entry.time_us for n, entry in predicted.items()})
