"""`compare`: several systems on one workload, and what limits the fastest system."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Unpack

from dysharp.analysis import Row
from dysharp.api.gain_map import GainMap, gain_map
from dysharp.api.why import Why, systems_of, target_of, why_of
from dysharp.base import Amounts, AnyMapping, ByName, Cells, Column, Columns, ConfigError, Texts, check_word, frozen, named, sentences
from dysharp.model import Formats
from dysharp.planning.advice.tuning import TuningSearch, default_of, tune
from dysharp.planning.gain import SYSTEMS, of_switch
from dysharp.runs import RequestArgs, Survival, formats_of, grouped, limits_of, row_options, simulate_each, simulate_together, ways
from dysharp.runs.collective import collective_options, run_collective, running
from dysharp.runs.known import PRECISION, WHOLE_ROWS, NoEstimate, layer_rows
from dysharp.runs.request import Request, make_collective_request, make_request, takes
from dysharp.systems import System, all_systems, find_system, get_system
from dysharp.systems.collectives import get_collective

DEFAULT_SYSTEMS = ("deepep", "nvls", "comet", "fusion-only", "dysharp", "ideal")
FORMS = ("real", "paper", "all")


@frozen
class Comparison:
    """Several systems on one workload.

    rows       Rows in the order asked for
    baselines  {form: the system of that form that speed-ups refer to}
    speedup    {system: time of the baseline of its form over its time}; with windows, estimates for the whole layer
    header     lines that say what the numbers rest on
    sentence   what limits the fastest system; where real forms are compared, the fastest of these
    tuned      {system: settings that were tried, and the best}; {} unless asked for
    left_out   {system: why its leading tokens give no estimate}; such a system has no Row
    formats    {system: formats of its rows and weights, and its SMs}, on an hw cluster
    why        the gain of the fastest system that has parts, part by part; None unless asked for
    finite     what finite hardware leaves of the gain of the fastest system; None unless asked for
    gain_map   where each mechanism pays over tokens and inputs; None unless asked for
    """

    rows: tuple[Row, ...]
    baselines: Cells
    speedup: Amounts
    header: Texts
    sentence: str
    tuned: Mapping[str, TuningSearch] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    why: Why | None = None
    finite: Survival | None = None
    gain_map: GainMap | None = None

    @property
    def baseline(self) -> str:
        """The baseline of the speed-ups: that of real forms, or of paper forms where no real form ran."""
        return self.baselines.get("real") or self.baselines["paper"]

    def __str__(self) -> str:
        """Systems with their times and speed-ups, and the sentence."""
        return self.columns.screen(self.rows) + "\n" + sentences(" ".join([*self._estimated(), self.sentence]))

    def _repr_html_(self) -> str:
        """The same table for a notebook, with a bar for each time, and the header."""
        most = max((row.layer_us for row in self.rows), default=0.0)
        shares = [row.layer_us / most if most else 0.0 for row in self.rows]
        return self.columns.html(self.rows, bars=shares, below=(*self._estimated(), self.sentence, *self.header))

    def _estimated(self) -> list[str]:
        """Which times are estimates from leading tokens; [] where all tokens were simulated."""
        of = {row.system: row.window for row in self.rows if row.window}
        if not of:
            return []
        whose = "All times" if len(of) == len(self.rows) else f"Times of {', '.join(of)}"
        tokens, of_tokens = stops_of(self.rows)
        first = min(self.rows, key=lambda row: row.layer_us)
        near = [row.system for row in self.rows if row is not first and _interval_of(row)[0] < _interval_of(first)[1]]
        level = [f"Their precision does not tell {first.system} from {', '.join(near)}."] if near else []
        return [f"{whose} are estimates: the first {tokens} of {of_tokens} tokens per GPU were simulated.", *level]

    @property
    def columns(self) -> Columns:
        """Of `rows`."""
        return COMPARED.like(*COMPARED.own, Column("speedup", "speed-up", ".2f", lambda row: self.speedup[row.system]))

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(row.system for row in self.rows)}; print() shows the table, to_dict() all>"

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        rows = [row.to_dict() | COMPARED.more(row) for row in self.rows]
        more = named(self, "tuned", "left_out") | {"out_of_ranking": out_of_ranking(self.rows), "formats": dict(self.formats)}
        more |= named(self, "why", "finite", "gain_map")
        found = named(self, "baseline", "baselines", "speedup", "header", "sentence")
        return {"rows": rows} | found | {name: value for name, value in more.items() if value}


def stops_of(rows: Iterable[Row]) -> tuple[str, int]:
    """The simulated tokens per GPU of Rows that have estimates, "512" or "512 to 2048", and all their tokens."""
    windows = [row.window for row in rows if row.window]
    return " to ".join(map(str, sorted({few(window["tokens"] for window in windows) for few in (min, max)}))), windows[0]["of_tokens"]


def _interval_of(row: Row) -> tuple[float, float]:
    """Between which times nine of ten layers are; both the layer time where all tokens ran."""
    return (row.window.get("low_us", row.layer_us), row.window.get("high_us", row.layer_us)) if row.window else (row.time_us, row.time_us)


@takes(RequestArgs)
def compare(
    systems: Iterable[str] | None = None,
    baseline: str | None = None,
    forms: str | None = None,
    *,
    tuned: bool = False,
    why: bool = False,
    mapped: bool = False,
    finite: bool = False,
    **request: Unpack[RequestArgs],
) -> Comparison:
    """Simulate several systems on one workload, drawn once, and say what limits the best.

    `systems`: names, each once. None: on a paper cluster `DEFAULT_SYSTEMS`. On an hw cluster `forms` decides: "real" (default)
    takes the systems whose real form runs this model there, "paper" those of a paper cluster in paper form, "all" the first group, and the systems
    of the second group that have no real form. Speed-ups never compare a real form with a paper form. `baseline`: the system among them that
    speed-ups refer to. None: deepep, or the first. `tuned`: the knobs of every system (`tuning.KNOBS`) that `options` does not set are searched
    first, on few tokens, with the same number of settings for each system. Each system then runs with its best setting and with its defaults, and the
    faster Row stays. `why`: the systems between deepep and the fastest system whose gain has parts (`why.LADDERS`) run, too, in paper form. `mapped`:
    also where each mechanism pays (`gain_map`), for a layer on a paper cluster. `finite`: all run at packet level, and the fastest and its baseline
    also without the end of each resource (`finite.ways`). A system whose leading tokens (`window`) give no estimate is left out, with a warning; as
    `baseline` it is an error. A layer over several NVLink domains with more than `known.WHOLE_ROWS` rows runs until its time is known, unless
    `window` or `exact` say otherwise. Raises TypeError for an unknown argument, ConfigError for wrong input, SimulationError for a deadlock.
    """
    if finite:
        if tuned or mapped:
            raise ConfigError(f"finite: found it beside {'tuned' if tuned else 'a map'}, expected one of both")
        return _on_finite(systems, baseline, forms, request, why=why)
    if request["workload"] is not None:
        if forms is not None or tuned:
            raise ConfigError(f"{'forms' if forms else 'tuned'}: found it beside a workload, expected none (collectives have one form and no knobs)")
        if mapped:
            raise ConfigError("map: found it beside a workload, expected none (it varies a layer)")
        return _collectives(None if systems is None else list(systems), baseline, request, why)
    chosen, asked = chosen_systems(systems, forms, request)
    if baseline is not None and baseline not in chosen:
        get_system(baseline)
        raise ConfigError(f"baseline {baseline!r}: not among the systems compared; expected one of {', '.join(chosen)}")
    found = tune(chosen, asked) if tuned else {}
    best = {f"{name}.{knob}": value for name, one in found.items() for knob, value in one.best.items()}
    rows, left_out = _run(chosen, replace(asked, options=dict(asked.options) | best), baseline)
    if found:
        rows, found = _never_worse(rows, found, asked)
    base = {form: _base(same, baseline) for form in ("real", "paper") if (same := [row for row in rows if row.form == form])}
    speedup = {row.system: base[row.form].layer_us / row.layer_us for row in rows}
    baselines = {form: row.system for form, row in base.items()}
    header = (*header_lines(rows), *left_out_lines(left_out))
    formats = {row.system: formats_of(row.system, row.options, asked.model) for row in rows} if asked.cluster.family == "hw" else {}
    us = {row.system: row.layer_us for row in rows}
    parts = _why(target_of(us), rows, asked) if why else None
    if parts and (alone := [key for key in asked.options if key.partition(".")[0] == parts.target]):
        header = (*header, f"why: {', '.join(alone)}: {parts.target} alone has it, so its last part contains what it changes")
    gain = of_switch(us) if parts is None else "In paper form, " * bool(formats) + parts.sentence
    table = gain_map(asked, lambda tokens: _us_at(request, tokens)) if mapped else None
    said = " ".join(filter(None, (limits_sentence(rows, baselines), gain, table.sentence if table else "")))
    return Comparison(rows, baselines, speedup, header, said, found, left_out, formats, parts, gain_map=table)


def _us_at(request: RequestArgs, tokens: int) -> Amounts:
    """{system: us} of the systems of a map."""
    rows = compare(SYSTEMS, **(request | {"tokens": tokens, "options": None})).rows
    return {row.system: row.layer_us for row in rows}


def _on_finite(systems: Iterable[str] | None, baseline: str | None, forms: str | None, request: RequestArgs, *, why: bool) -> Comparison:
    """The systems at packet level, and what that leaves of the gain of the fastest beside the baseline."""
    asked, systems = ways(request), None if systems is None else list(systems)
    alone = ConfigError("finite: found no system beside the baseline of its form, expected one (a gain is over a baseline)")
    if systems is not None and len({*systems, baseline} - {None}) == 1:
        raise alone
    done = compare(systems, baseline, forms, why=why, **asked.pop("finite"))
    others = [row for row in done.rows if row.system not in done.baselines.values()]
    if not others:
        raise alone
    best = others[place_of_fastest([(row.system, row.form, row.dropped_rows, row.layer_us) for row in others])]
    base = done.baselines[best.form]
    pair = {name: args | {"options": _options_of((base, best.system), args["options"])} for name, args in asked.items()}
    ratio = {name: compare([base, best.system], base, forms, **args).speedup[best.system] for name, args in pair.items()}
    found = Survival(f"{best.system} over {base}", ratio.pop("headline"), done.speedup[best.system], ratio)
    return replace(done, sentence=f"{found.sentence} {done.sentence}", finite=found)


def _why(target: str, rows: Sequence[Row], asked: Request) -> Why:
    """Why `target` is faster than its baseline: `rows`, and runs of the systems that are missing."""
    known = {row.system: row for row in rows if row.form == "paper"}
    missing = {name: get_system(name) for name in systems_of(target) if name not in known}
    theirs = _in_form(replace(asked, options=_options_of(missing, asked.options)), "paper", list(missing))
    found, without = _rows(missing, theirs) if missing else ((), {})
    for error in without.values():
        raise error
    return why_of(target, known | {row.system: row for row in found})


def _options_of(names: Iterable[str], options: AnyMapping | None) -> ByName:
    """Those of `options` that are of the systems `names`, or of the fabric."""
    return {key: value for key, value in (options or {}).items() if key.partition(".")[0] in (*names, "fabric")}


def chosen_systems(systems: Iterable[str] | None, forms: str | None, request: RequestArgs) -> tuple[dict[str, System], Request]:
    """The systems asked for, or the usual ones, and the request with their form. A large layer over several domains stops when its time is known."""
    asked = make_request(request)
    if request["window"] is None and not request["exact"] and asked.precision is None and asked.cluster.domains > 1 and asked.fidelity == "burst":
        asked = replace(asked, precision=PRECISION if layer_rows(asked) > WHOLE_ROWS else None)
    names, asked = _default_systems(asked, forms) if systems is None else (list(systems), _in_form(asked, forms, list(systems)))
    chosen = {name: get_system(name) for name in names}
    if not names or len(chosen) < len(names):
        raise ConfigError(f"systems: found {', '.join(names) or 'none'}, expected at least one and each once")
    return chosen, asked


@takes(RequestArgs)
def rows_both_ways(systems: Iterable[str] | None = None, formats: Formats | None = None, **request: Unpack[RequestArgs]) -> list[tuple[Row, Row]]:
    """The Rows of a forward and of a backward pass of each system, by `systems` as for `compare`; without the waits of ranks (`Row.waiting_us`).

    `formats`: which rows the systems send, as far as they say it. All passes share one pool of processes. Raises what `compare` raises.
    """
    chosen, asked = chosen_systems(systems, None, request)
    asked = replace(asked, options=row_options(formats, chosen) | dict(asked.options))
    ways = [replace(asked, direction=direction, waiting=False) for direction in ("fwd", "bwd")]
    pairs = list(zip(*simulate_each(chosen, ways), strict=True))
    for one in (one for pair in pairs for one in pair if isinstance(one, NoEstimate)):
        raise one
    return [(forward, backward) for forward, backward in pairs if isinstance(forward, Row) and isinstance(backward, Row)]


def _collectives(names: list[str] | None, baseline: str | None, request: RequestArgs, why: bool = False) -> Comparison:
    """The systems on one collective; None: all that run it. Speed-ups refer to `baseline`, or to NCCL's own choice."""
    named = {name: get_collective(name) for name in names or ()}
    asked = make_collective_request(request)
    chosen = running(asked) if names is None else named
    if not chosen or len(chosen) < len(names or ()):
        found = ", ".join(names or ()) or f"none that runs {asked.work.description} on {asked.cluster.name}"
        raise ConfigError(f"systems: found {found}, expected at least one and each once")
    if baseline is not None and baseline not in chosen:
        raise ConfigError(f"baseline {baseline!r}: not among the systems compared; expected one of {', '.join(chosen)}")
    target = target_of(dict.fromkeys(chosen, 0.0)) if why else ""
    chosen |= {name: get_collective(name) for name in (systems_of(target) if why else ()) if name not in chosen}
    options = collective_options(chosen, asked.options)
    rows = tuple(run_collective(system, asked, options[name], index=i, count=len(chosen)) for i, (name, system) in enumerate(chosen.items(), 1))
    base = next(row for row in rows if row.system == (baseline or ("nccl" if "nccl" in chosen else rows[0].system)))
    speedup, baselines = {row.system: base.time_us / row.time_us for row in rows}, {row.form: base.system for row in rows}
    parts = why_of(target, {row.system: row for row in rows}) if why else None
    sentence = " ".join([limits_sentence(rows, baselines), *([parts.sentence] if parts else [])])
    return Comparison(rows, baselines, speedup, header_lines(rows), sentence, why=parts)


def _run(systems: Mapping[str, System], request: Request, baseline: str | None) -> tuple[tuple[Row, ...], Cells]:
    """As `_rows`. Raises NoEstimate for the baseline, and where no Row is left."""
    rows, without = _rows(systems, request)
    for name, error in without.items():
        if name == baseline or not rows:
            raise error
    return rows, {name: str(error) for name, error in without.items()}


def _rows(systems: Mapping[str, System], request: Request) -> tuple[tuple[Row, ...], dict[str, NoEstimate]]:
    """The Rows of the systems, and {system: why its leading tokens give no estimate}."""
    found = dict(zip(systems, simulate_together(systems, request), strict=True))
    rows = tuple(row for row in found.values() if isinstance(row, Row))
    return rows, {name: error for name, error in found.items() if isinstance(error, NoEstimate)}


def _never_worse(rows: tuple[Row, ...], found: Mapping[str, TuningSearch], asked: Request) -> tuple[tuple[Row, ...], dict[str, TuningSearch]]:
    """The Rows and searches. A system keeps its defaults where all tokens run faster with them than with the setting of its search."""
    systems = {row.system: get_system(row.system) for row in rows}
    found = {name: one for name, one in found.items() if name in systems}  # others are left out
    changed = {name: one for name, one in found.items() if any(value != default_of(systems[name], knob) for knob, value in one.best.items())}
    usual = {row.system: row for row in _rows({name: systems[name] for name in changed}, asked)[0]} if changed else {}
    kept = {row.system for row in rows if row.system in usual and usual[row.system].layer_us < row.layer_us}
    searches = {name: replace(one, best={}, overruled=one.best) if name in kept else one for name, one in found.items()}
    return tuple(usual[row.system] if row.system in kept else row for row in rows), searches


def _default_systems(request: Request, forms: str | None) -> tuple[list[str], Request]:
    """The systems to compare where none are named, and the request with their form."""
    if request.cluster.family != "hw":
        return (usual := _usual(request)), _in_form(request, forms, usual)
    released = {name: s for name, s in all_systems().items() if s.today and s.has_real_form}
    real = [name for name, s in released.items() if not (s.ships and s.ships.why_not(request.model, request.cluster))]
    real = [name for name in real if _is_usual(get_system(name), request, "real")]
    if forms == "paper":
        return (usual := _usual(request)), _in_form(request, forms, usual)
    wanted = _in_form(request, forms, real)
    return [*real, *(name for name in _usual(request) if forms == "all" and not get_system(name).has_real_form)], wanted


def _usual(request: Request) -> list[str]:
    """The systems that `compare` takes on a paper cluster: the five usual ones on one NVLink domain with a switch, else all that run there
    (`_is_usual`)."""
    if request.cluster.domains == 1 and request.cluster.n_switches:
        return list(DEFAULT_SYSTEMS)
    return [name for name, s in all_systems().items() if _is_usual(s, request, "paper")]


def _is_usual(system: System, request: Request, form: str) -> bool:
    """Whether `form` runs on the cluster without being asked for by name."""
    return system.reach.runs_on(request.cluster, form) and not system.reach.only_by_name(request.cluster, form)


def _in_form(request: Request, forms: str | None, names: Sequence[str]) -> Request:
    """The request with the form that `forms` asks of the systems `names`. Raises ConfigError for an unknown form."""
    if forms is None or forms == "all":
        return request
    check_word(forms, FORMS, f"forms: found {forms[:60]!r}")
    systems = [get_system(name) for name in names]
    if forms == "real" and (paper := [s.name for s in systems if not s.has_real_form or request.cluster.family != "hw"]):
        raise ConfigError(f'forms: found "real" for {", ".join(paper)} on cluster "{request.cluster.name}", expected systems with a real form there')
    given = {f"{s.name}.form": forms for s in systems if s.has_real_form}
    return replace(request, options=given | dict(request.options))


def _base(rows: Sequence[Row], baseline: str | None) -> Row:
    """The baseline among Rows of one form: the system asked for, else deepep, else the first that drops no rows, else the first."""
    by_name = {row.system: row for row in rows}
    return by_name.get(baseline or "") or by_name.get("deepep") or min(rows, key=lambda row: row.dropped_rows > 0)


def place_of_fastest(found: Sequence[tuple[str, str, int, float]]) -> int:
    """The place of the fastest of (system, form, dropped rows, us) that does all work, that one could build, and of the real forms if any.

    A system that drops rows is the fastest only where every system drops some: it does less work.
    """
    bounds = {name for name, *_ in found if (one := find_system(name)) and one.bound} if len(found) > 1 else set()
    return min(range(len(found)), key=lambda i: (found[i][2] > 0, found[i][0] in bounds, found[i][1] != "real", found[i][3]))


def marked(row: Any) -> str:
    """The system of a Row or a step, with a star where it drops rows."""
    return f"{row.system}*" if row.dropped_rows else str(row.system)


COMPARED = Columns(Column("system", of=marked), "form", "us=layer_us:.2f")
"""What screens show of Rows that are compared."""


def out_of_ranking(rows: Iterable[Row]) -> Cells:
    """{system: why it is not ranked}: systems that drop rows."""
    return {row.system: f"drops {row.dropped_share:.1%} of the (token, expert) rows".replace("%", " %") for row in rows if row.dropped_rows}


def header_lines(rows: Sequence[Row]) -> Texts:
    """The headers of Rows of one workload, and their warnings, each line once. Settings of several systems are columns of a table instead."""
    of_one = {f"{row.system}: {row.form} form, " for row in rows} if len(rows) > 1 else set()
    lines = dict.fromkeys(line for row in rows for line in row.header if not line.startswith(tuple(of_one)))
    known = [line.removeprefix("warning: ") for line in lines]
    warnings = grouped({row.system: row.warnings for row in rows}, known)
    return (*lines, *(f"warning: {text}" for text in warnings))


def left_out_lines(left_out: Mapping[str, str]) -> Texts:
    """`Comparison.left_out` as lines of a header."""
    return tuple(f"warning: {name} is left out: {why}" for name, why in left_out.items())


def limits_sentence(rows: tuple[Row, ...], baselines: Mapping[str, str]) -> str:
    """The fastest system (`place_of_fastest`), its busiest resource, its critical path, and the lower bound of the workload.

    The last sentence names the systems that are not ranked because they drop rows.
    """
    best = rows[place_of_fastest([(row.system, row.form, row.dropped_rows, row.layer_us) for row in rows])]
    baseline = baselines[best.form]
    base = next(row for row in rows if row.system == baseline)
    versus = f", {base.layer_us / best.layer_us:.2f}x {baseline}" if best.system != baseline else ""
    start = "Every system drops rows. Shortest is" if best.dropped_rows else "Fastest is"
    text = f"{start} {best.system} ({best.layer_us:.1f} us{versus}), {limits_of(best)}"
    out = ", ".join(f"{name} {why}" for name, why in out_of_ranking(rows).items())
    return f"{text} Out of the ranking: {out}." if out else text
