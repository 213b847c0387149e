"""`advise`: which EP system to run on a machine, what limits it, and what would help; the answer is three lines that a person can paste."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Unpack

from dysharp.analysis.load import Load, eplb_spec, load_of
from dysharp.analysis.surroundings import host_line
from dysharp.base import AnyMapping, ByName, Cells, ConfigError, DysharpError, Texts, frozen, named, plain
from dysharp.base.text import sentences, table
from dysharp.costs import Machine, narrow_bytes
from dysharp.measured.trust import PredictionScope, measured_range, whole_layers
from dysharp.model import FORMATS, Formats, formats_of, trained
from dysharp.planning.advice.candidates import candidates, nothing_to_rank, options_to_run
from dysharp.planning.advice.prediction import AdviceRuns, Predicted
from dysharp.planning.advice.tuning import edge_of, fewest_near_best, search
from dysharp.planning.advice.what_if import WhatIf, what_ifs
from dysharp.runs import KNOB, ModelSource, Phase, Request, Value, Workers, get_phase, make_request, passes_of, replayed, resource_words, takes
from dysharp.runs.arguments import MEASURED_CLUSTER, AdviseArgs, RequestArgs, arguments_of
from dysharp.runs.precision import default_formats, layer_in, row_options, with_rows
from dysharp.specs import Model
from dysharp.systems import System, get_system

PARTS = {"dispatch": "Dispatch", "combine": "Combine", "other": "software", "around": "other kernels"}
"""Parts of `Predicted.parts_us` that are printed under another name."""
NEAR = 1.15
"""The answer also names predictions without an error bar that take at most this many times as long as the fastest."""
NO_CHANGE = 0.005
"""A change of the layer time below this share is printed as none."""


def _answer_lines(best: Predicted, ties: Sequence[Predicted], changes: Sequence[WhatIf], unjudged: Sequence[Predicted] = ()) -> tuple[str, str, str]:
    """(what to run, what limits it, what would help). `unjudged`: predictions without an error bar."""
    whole = [entry for entry in unjudged if not entry.row.dropped_rows]
    out = ", ".join(f"{entry.system} drops {entry.row.dropped_share:.1%}".replace("%", " %") for entry in unjudged if entry.row.dropped_rows)
    less = f" Out of the ranking, because they compute fewer (token, expert) rows: {out}." if out else ""
    return _run_line(best, ties, whole) + less, _limit_line(best, changes), _help_line(best, changes)


def _settings_of(entry: Predicted) -> str:
    """Formats, and SMs of communication with how they were chosen."""
    if not entry.tried:
        return entry.formats
    why = "fewest within 1 % of the fastest"
    if entry.edge:
        why += f"; the {entry.edge} that was measured"
    return f"{entry.formats} ({why})"


def percent(share: float) -> str:
    """A relative change: "-7 %", "+0.6 %", "no change" below 0.5 %."""
    if abs(share) < NO_CHANGE:
        return "no change"
    return f"{share:+.0%}".replace("%", " %") if abs(share) >= 0.015 else f"{100 * share:+.1f} %"


def _unchecked_line(best: Predicted, others: Sequence[Predicted]) -> str:
    near = [_short(entry) for entry in others if best.time_us <= entry.time_us <= NEAR * best.time_us and entry.system != best.system]
    text = f"Fastest prediction, which no measurement checks: {best.system}, {best.time_us:.0f} us per layer. Settings: {_settings_of(best)}."
    return text + (f" Close to it: {', '.join(near)}." if near else "")


def _run_line(best: Predicted, ties: Sequence[Predicted], others: Sequence[Predicted]) -> str:
    bar = best.bar()
    if bar is None:
        return _unchecked_line(best, others)
    text = f"Run {best.system}: {best.time_us:.0f} us per layer, error bar {bar[0]:.0f} to {bar[1]:.0f} us. Settings: {_settings_of(best)}."
    if ties:
        names = ", ".join(_short(entry) for entry in ties)
        text += f" May be as fast (error bars overlap): {names}."
    if faster := [entry for entry in others if entry.time_us < best.time_us]:
        text += f" Faster in this simulation, but without an error bar: {', '.join(_short(entry) for entry in faster)}."
    return text


def _short(entry: Predicted) -> str:
    """A system with its SMs and time: "deepep with 24 SMs 656 us"."""
    sms = f" with {entry.row.options[KNOB]} SMs" if KNOB in entry.row.options else ""
    return f"{entry.system}{sms} {entry.time_us:.0f} us"


def _limit_line(best: Predicted, changes: Sequence[WhatIf]) -> str:
    fused = best.one_kernel_us()
    shares = fused or {PARTS.get(name, name): us for name, us in best.parts_us().items()}
    known = sorted(((name, us / best.time_us) for name, us in shares.items() if us > 0), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {share:.0%}".replace("%", " %") for name, share in known)
    row = best.row
    busy = f"busiest: {resource_words(row.bound_resource)} ({row.bound_us / row.time_us:.0%})".replace("%", " %")
    free = next((entry.predicted.time_us for entry in changes if get_system(entry.predicted.system).bound), None)
    least = "" if free is None else f" Free communication would leave {free:.0f} us."
    whose = "" if best.row.window else f"; {busy}"  # the busiest resource of few tokens may be another one
    return f"Limit: {parts} of the layer{whose}.{least}"


def _help_line(best: Predicted, changes: Sequence[WhatIf]) -> str:
    parts = []
    for entry in changes:
        if entry.predicted.row.form == "real":
            parts.append(f"{entry.short} {percent(entry.difference_us / entry.best_us)}")
    return f"Change of the layer time: {', '.join(parts)}." if parts else "No change was simulated."


@frozen
class Advice:
    """What `dysharp advise` prints; `to_dict` is its `--json`.

    ranking     predictions with an error bar, fastest first
    unjudged    predictions without an error bar, and those that drop rows; fastest first, those that drop rows last
    not_ranked  {system: reason}
    load        load of GPUs and GPU pairs, under the placement asked for and under EPLB's
    what_if     one change each, compared with `best`
    no_what_if  {change: why it has no prediction here}
    header      lines that say what the numbers rest on
    layers      errors of whole eager layers like this one on this GPU (`trust.FamilyErrors`), a check of the sum; None without measurements
    host        line that says whose host launches the eager layers
    formats     of weights, products, KV, state and rows (`Formats.to_dict`), under `best`
    """

    ranking: tuple[Predicted, ...]
    unjudged: tuple[Predicted, ...]
    not_ranked: Mapping[str, str]
    load: tuple[Load, ...]
    what_if: tuple[WhatIf, ...]
    no_what_if: Mapping[str, str]
    header: Texts
    layers: AnyMapping | None
    host: str
    formats: AnyMapping

    @property
    def best(self) -> Predicted:
        """The subject of the advice: the first of the ranking; without a ranking the fastest of the rest."""
        return (*self.ranking, *self.unjudged)[0]

    @property
    def answer(self) -> tuple[str, str, str]:
        """What to run; what limits it; what would help."""
        return _answer_lines(self.best, self.ties(), self.what_if, self.unjudged)

    def ties(self) -> tuple[Predicted, ...]:
        """The systems whose error bars overlap the first system's bar: the fastest of them is not known."""
        bars = [(entry, bar) for entry in self.ranking if (bar := entry.bar()) is not None]
        return tuple(entry for entry, bar in bars[1:] if bar[0] <= bars[0][1][1])

    def limits(self) -> ByName:
        """Where the time of the best system goes, as plain values."""
        row = self.best.row
        bounds = named(row, "system", "bound_us", "bound_resource", "bound_terms", "workload_bound_us")
        bounds |= named(row, "attribution", "utilization", "exposed_comm_us")
        return bounds | {"surroundings_us": plain(self.best.around), "load": plain(self.load)}

    def __str__(self) -> str:
        """The answer in three lines, and the ranking with its error bars."""
        bars = [(entry, entry.bar()) for entry in self.ranking]
        rows = [(e.row.system, f"{e.time_us:.0f}", f"{bar[0]:.0f} to {bar[1]:.0f}" if bar else "not known") for e, bar in bars]
        answer = "\n".join(sentences(line) for line in self.answer)
        return answer + "\n" + table(("system", "layer us", "90 % within us"), rows)

    def __repr__(self) -> str:
        return f"<Advice: {', '.join(entry.row.system for entry in self.ranking)}; print() shows the ranking, to_dict() all>"

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        found = named(self, "answer", "ranking", "unjudged", "limits", "what_if", "no_what_if")
        found["ties"] = [entry.system for entry in self.ties()]
        return found | named(self, "not_ranked", "formats") | {"layer_errors": plain(self.layers), "header": list(self.header)}


@takes(AdviseArgs, cluster=MEASURED_CLUSTER)
def advise(model: ModelSource, **request: Unpack[AdviseArgs]) -> Advice:
    """Rank the EP systems that run on a machine today, say what limits the best, and what changes would bring.

    `model`: name of a packaged model, a TOML file, a Hugging Face `config.json`, or a `Model`. Without `precision`, products are as the model says,
    and each system sends the formats of its released kernels. `cluster` must be an hw-* cluster. Without a given `n_sm`, a measured system takes the
    fewest SMs of the measured range within 1 % of the fastest number; other systems keep their default.
    Raises TypeError for an unknown argument, ConfigError for wrong input or when no system runs.
    """
    asked, phase, formats = asked_for(model, request)
    with Workers() as workers:
        return _advice(asked, phase, request["systems"], workers, formats)


def asked_for(model: ModelSource, request: AdviseArgs) -> tuple[Request, Phase | None, Formats | None]:
    """The request of advice, complete, its phase, and the formats of `precision`. Raises ConfigError for wrong input, and for a paper cluster."""
    phase = None if request["phase"] is None else get_phase(request["phase"])
    if phase is not None:
        request["direction"] = passes_of(phase, request["direction"])
        request["tokens"] = phase.tokens if request["tokens"] is None else request["tokens"]
    every = {name: argument.default for name, argument in arguments_of(RequestArgs).items()}
    asked = make_request({**every, **request, "model": model})  # type: ignore[typeddict-item]
    asked = dataclasses.replace(asked, waiting=False)  # advice reads the critical path instead
    if phase is not None:
        asked = dataclasses.replace(asked, routing=replayed(phase, asked.routing))
    formats = None if request["precision"] is None else formats_of(request["precision"])
    if formats is not None:
        formats = formats if asked.direction == "fwd" else trained(formats)
        asked = dataclasses.replace(asked, model=layer_in(asked.model, formats, Machine(asked.cluster)))
    if asked.cluster.family != "hw":
        raise ConfigError(f'advise: found cluster "{asked.cluster.name}" of the {asked.cluster.family} family, expected an hw-* cluster')
    return asked, phase, formats


def _held_formats(layer: Model, direction: str) -> Formats:
    """Formats of a simulated pass where nobody said any: forward, narrow weights of a checkpoint stay as they are."""
    if narrow_bytes(layer, direction):
        held = layer.checkpoint
        held = f"int4,weights={held}" if held in FORMATS and held.startswith("int4-") else held  # a format is no name of a precision
        return dataclasses.replace(default_formats(held), products=layer.gemm_dtype)
    return default_formats(layer.gemm_dtype)


def _advice(asked: Request, phase: Phase | None, systems: Sequence[str] | None, workers: Workers, formats: Formats | None) -> Advice:
    """The advice on a request that is complete."""
    chosen, not_ranked = candidates(systems, asked, phase)
    if formats is not None:
        asked = dataclasses.replace(asked, options=_sent(formats, chosen, not_ranked, systems is not None) | dict(asked.options))
    options, with_options = options_to_run(chosen, asked)
    chosen = {name: system for name, system in chosen.items() if name not in not_ranked}
    runs = AdviceRuns(asked, workers, phase)
    measured = {name: system for name, system in chosen.items() if measured_range(name, "sms", asked.cluster.gpu, asked.cluster.domains) is not None}
    found = search(runs.rows, runs.workload(), measured, options, (KNOB,))
    tried = {name: {setting[KNOB]: us for setting, us in one.tried} for name, one in found.items() if one.tried}
    jobs = [runs.job(name, options[name] | ({KNOB: fewest_near_best(tried[name])} if name in tried else {})) for name in chosen]
    done = []
    for name, predicted in zip(chosen, runs.predict(jobs), strict=True):
        if not isinstance(predicted, DysharpError):
            own = tried.get(name)  # numbers of SMs that were compared
            done.append(dataclasses.replace(predicted, tried=own, edge=edge_of(int(predicted.row.options["n_sm"]), tuple(own))) if own else predicted)
        elif systems is not None or name in with_options:
            raise predicted
        else:
            not_ranked[name] = str(predicted)
    if not done:
        raise ConfigError(nothing_to_rank(not_ranked, asked))
    done.sort(key=lambda entry: (entry.row.dropped_rows > 0, entry.time_us))
    ranking = tuple(entry for entry in done if entry.interval is not None and not entry.row.dropped_rows)
    unjudged = tuple(entry for entry in done if entry not in ranking)
    best = (*ranking, *unjudged)[0]
    scope = PredictionScope(best.system, asked.model, asked.cluster, asked.tokens, asked.direction, best.row.options)
    routing, layers = runs.workload().routing, whole_layers(scope)
    changes, without = what_ifs(runs, best)
    known = with_rows(formats or _held_formats(asked.model, asked.direction), best.row.options, asked.model)
    run_in = Machine(asked.cluster).products
    return Advice(
        ranking=ranking,
        unjudged=unjudged,
        not_ranked=not_ranked,
        load=tuple(load_of(r, asked.cluster.domain_gpus) for r in (routing, runs.workload(placement=eplb_spec(routing)).routing)),
        what_if=changes,
        no_what_if=without,
        header=(*runs.header[:1], known.line(None, run_in), *runs.header[1:]),
        layers=None if layers is None else dataclasses.asdict(layers),
        host=host_line(asked.cluster),
        formats=known.to_dict(run_in),
    )


def _sent(formats: Formats, chosen: Mapping[str, System], not_ranked: Cells, named: bool) -> dict[str, Value]:
    """Options of systems that send the rows of `formats`. A system that cannot is not ranked; raises ConfigError if it was asked for by name."""
    found: dict[str, Value] = {}
    for name in chosen:
        try:
            found |= row_options(formats, (name,)) if name not in not_ranked else {}
        except ConfigError as error:
            if named:
                raise
            not_ranked[name] = str(error)
    return found
