"""`quick_compare`, `quick_advise`: answers by closed forms and bounds alone, in the fields of the simulated ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Unpack

from dysharp.analysis.bound import collective_bound_us
from dysharp.analysis.row import Row
from dysharp.api.comparison import chosen_systems, place_of_fastest
from dysharp.base import AnyMapping, ByName, ConfigError, Rows, Texts, frozen
from dysharp.planning.quick import APART, BOUND, CLOSED, QuickLayer, quick_layers
from dysharp.runs import MEASURED_CLUSTER, AdviseArgs, ModelSource, RequestArgs, header_of, make_collective_request, running, takes
from dysharp.systems.collectives import get_collective

STANDS_ON = (
    f"closed form: rates and costs of the kernels; nine of ten are within {100 * APART:.0f} % of the simulated layer; "
    "a range counts the measured errors, too",
    "bound: the layer takes at least so long; only a simulation says how long",
)


@frozen
class QuickAnswer:
    """Layers by closed forms and bounds. `rows`: their fields as those of `Row.to_dict`. `not_ranked`: {system: why}."""

    layers: tuple[QuickLayer, ...]
    rows: tuple[ByName, ...]
    header: Texts
    not_ranked: Mapping[str, str]

    @property
    def best(self) -> QuickLayer:
        """The fastest closed form that does all work; where there is none, the lowest bound that one could build."""
        known = [one for one in self.layers if one.kind == CLOSED] or list(self.layers)
        return known[place_of_fastest([(one.system, one.form, one.dropped_rows, one.time_us) for one in known])]

    def sentence(self) -> str:
        """The answer."""
        best = self.best
        lower = sum(one.kind == BOUND for one in self.layers if one is not best)
        more = f" {lower} more {'has' if lower == 1 else 'have'} a bound alone and may be faster." if lower and best.kind == CLOSED else ""
        if best.kind == BOUND:
            return f"No system has a closed form here. The lowest bound is that of {best.system}: at least {best.time_us:.1f} us."
        return f"Quick answer: {best.system}, {best.time_us:.1f} us ({best.words()}). Not simulated.{more}"

    @property
    def by_time(self) -> list[QuickLayer]:
        """Rows of `planning.quick.LAYERS`: closed forms and bounds alike from the shortest."""
        return sorted(self.layers, key=lambda one: one.time_us)

    def to_dict(self) -> ByName:
        """The fields of `Comparison.to_dict` and "quick"; speed-ups are those among closed forms."""
        base = next((one for one in self.layers if one.system == "deepep"), self.layers[0])
        speedup = {one.system: base.time_us / one.time_us if one.kind == base.kind == CLOSED else None for one in self.layers}
        return {
            "quick": True, "rows": list(self.rows), "baseline": base.system, "baselines": {base.form: base.system}, "speedup": speedup,
            "header": [*self.header, *STANDS_ON], "sentence": self.sentence(),
        }  # fmt: skip

    def to_advice(self) -> ByName:
        """The fields of `Advice.to_dict` and "quick"; None where only a simulation knows."""
        order = sorted(range(len(self.layers)), key=lambda i: self.layers[i].time_us)
        judged = [i for i in order if self.layers[i].bar is not None]
        found = {"ranking": judged, "unjudged": [i for i in order if i not in judged]}
        entries = {name: [_predicted(self.layers[i], self.rows[i]) for i in places] for name, places in found.items()}
        return {"quick": True, "answer": [self.sentence()], **entries} | {
            "limits": None, "what_if": [], "no_what_if": {}, "ties": [], "not_ranked": dict(self.not_ranked), "layer_errors": None,
            "header": [*self.header, *STANDS_ON],
        }  # fmt: skip


PREDICTED = (
    "formats", "eager_us", "typical_error", "p90_error", "families", "tokens_simulated", "simulated_us", "surroundings_us", "one_kernel_us",
    "phases_us", "tokens_per_s", "tried", "edge", "warnings",
)  # fmt: skip
"""Fields of a prediction that only a simulation fills."""


def _predicted(layer: QuickLayer, row: AnyMapping) -> ByName:
    known = {name: row[name] for name in ("system", "form", "options", "time_us", "low_us", "high_us", "exposed_comm_us", "kind")}
    return known | {"parts_us": row["path_us"]} | dict.fromkeys(PREDICTED)


@takes(RequestArgs)
def quick_compare(systems: Iterable[str] | None = None, forms: str | None = None, **request: Unpack[RequestArgs]) -> QuickAnswer:
    """The systems on one workload as `compare`, by closed forms and bounds. Raises what `compare` raises before it simulates."""
    if request["workload"] is not None:
        return _collectives(None if systems is None else list(systems), request)
    chosen, asked = chosen_systems(systems, forms, request)
    (layers,), workload = quick_layers(chosen, [asked])
    rows = [one.to_dict(asked, workload.routing) for one in layers]
    return QuickAnswer(tuple(layers), tuple(rows), header_of(workload), {})


def _collectives(names: Sequence[str] | None, request: RequestArgs) -> QuickAnswer:
    """The bound of every system on a collective."""
    asked = make_collective_request(request)
    chosen = list(running(asked)) if names is None else [get_collective(name).name for name in names]
    if not chosen:
        raise ConfigError(f"systems: found none that runs {asked.work.description} on {asked.cluster.name}, expected at least one")
    us = collective_bound_us(asked.work, asked.cluster)
    layers = [QuickLayer(name, "real", BOUND, us, 0.0, 0.0, 0.0, 0.0, None, 0.0, {}) for name in chosen]
    blank = {one.name: None for one in fields(Row) if one.name != "header"}
    known = {"workload": asked.work.description, "cluster": asked.cluster.name, "gpus": asked.cluster.n_gpus, "time_us": us, "kind": BOUND}
    rows = [blank | known | {"system": name, "low_us": None, "high_us": None} for name in chosen]
    return QuickAnswer(tuple(layers), tuple(rows), (f"{asked.work.description}, {asked.cluster.n_gpus} GPUs of {asked.cluster.name}",), {})


@takes(AdviseArgs, cluster=MEASURED_CLUSTER)
def quick_advise(model: ModelSource, **request: Unpack[AdviseArgs]) -> QuickAnswer:
    """The systems that `advise` ranks, each with its default options, by closed forms and bounds. Raises what `advise` raises before it simulates."""
    from dysharp.planning.advice.advise import asked_for
    from dysharp.planning.advice.candidates import candidates, nothing_to_rank, options_to_run

    asked, phase, _ = asked_for(model, request)
    chosen, not_ranked = candidates(request["systems"], asked, phase)
    options, _ = options_to_run(chosen, asked)
    layers: list[QuickLayer] = []
    rows: Rows = []
    header: Texts = ()
    for name, system in chosen.items():
        if name in not_ranked:
            continue
        own = replace(asked, options={f"{name}.{key}": value for key, value in options[name].items()})
        try:
            (found,), workload = quick_layers({name: system}, [own])
        except ConfigError as error:
            if request["systems"] is not None:
                raise
            not_ranked[name] = str(error)
            continue
        layers += found
        rows.append(found[0].to_dict(own, workload.routing))
        header = header_of(workload, phase=phase)
    if not layers:
        raise ConfigError(nothing_to_rank(not_ranked, asked))
    return QuickAnswer(tuple(layers), tuple(rows), header, not_ranked)
