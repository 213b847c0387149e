"""The settings that users of a system tune, searched on few tokens: the same grid size for every system, then one run of the best."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from dysharp.analysis import Row
from dysharp.base import ByName, DysharpError, Numbers, frozen, named
from dysharp.measured.trust import measured_range
from dysharp.runs import KNOB, Job, Request, Result, Step, Workers, Workload, extended, header_of, layer_rows, make_workload
from dysharp.runs.options import EVERYWHERE, FIELDS, Value, option_choices, options_by_system
from dysharp.systems import System, is_real

BUDGET = 9
"""Settings that are tried of each system. A system whose knobs have fewer values is tried with all values."""
SEARCH_ROWS = 20_000
"""Most rows of the tokens with which settings of one system are compared. No time is estimated from them."""
STEP_SHARE, GROWTH = 0.1, 1.1
"""An operator with more than this share of the layer must take this many times as long when these tokens double."""
NEAR = 1.01
"""A number of SMs is near the fastest when its layer takes at most this many times as long."""
KNOBS: Mapping[str, Numbers] = {
    KNOB: (4, 8, 12, 16, 20, 24, 32, 48, 64),
    "chunk": (16, 32, 64, 128, 256),
    "degree": (1, 2, 3, 4, 5, 6, 7, 8),
    "blocks_per_sm": (1, 2, 3),
    "n_comm": (8, 12, 16, 20, 24, 28, 32, 48, 64),
    "slices": (2, 4, 8, 16),
    "group": (1, 2, 4, 8, 16, 32, 64),
    "dispatch_window": (0, 16, 32, 64, 128, 256),
    "combine_window": (0, 16, 32, 64, 128, 256),
}
"""Options that users of systems tune, and values that are tried inside their range. 0: computed from the machine."""

Runs = Callable[[Sequence[Job]], "list[Result]"]


@frozen
class TuningSearch:
    """What was tried for one system.

    tried    [(setting, layer time in us)] in the order of the grid; empty where the leading tokens do not tell
    best     the setting of the smallest time; {} where nothing was tried
    runs     simulations that the search took
    tokens   tokens per GPU of the largest of them
    overruled  the setting that few tokens preferred, where all tokens run faster with the defaults; then `best` is {}
    """

    tried: tuple[tuple[Mapping[str, int], float], ...]
    best: Mapping[str, int]
    runs: int
    tokens: int
    overruled: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        tried = [{"setting": dict(setting), "time_us": us} for setting, us in self.tried]
        return named(self, "best", "overruled", "runs", "tokens") | {"tried": tried}


def search(
    runs: Runs, workload: Workload, systems: Mapping[str, System], options: Mapping[str, Mapping[str, Value]], knobs: Sequence[str] = tuple(KNOBS)
) -> dict[str, TuningSearch]:
    """{system: what was tried} of the systems with a knob among `knobs` that `options` does not give.

    Every system is tried with at most `BUDGET` settings, on the same leading tokens of the same workload. A setting that is refused is
    left out. Where all settings take the same time for leading tokens, these do not tell. `runs` simulates Jobs.
    """
    request = workload.request
    open_knobs = {name: [knob for knob in knobs if _has_knob(system, request, options[name], knob)] for name, system in systems.items()}
    grids = {name: _grid(systems[name], request, own) for name, own in open_knobs.items() if own}
    most = {name: _few_tokens(request, systems[name]) for name in grids}
    sizes = {name: () if n is None else (n // 2, n) for name, n in most.items()}
    keys = [(name, setting) for name, settings in grids.items() for setting in settings]
    found = runs([Job(name, {**options[name], **setting}, workload, sizes[name]) for name, setting in keys])
    tried: dict[str, list[tuple[Mapping[str, int], float]]] = {name: [] for name in grids}
    unknown: set[str] = set()
    for (name, setting), rows in zip(keys, found, strict=True):
        if not isinstance(rows, DysharpError):
            tried[name].append((setting, extended(rows[-2], rows[-1], request.tokens, lambda row: row.time_us) if rows[1:] else rows[0].time_us))
            unknown |= {name} if len(rows) > 1 and _does_not_grow(*rows[-2:]) else set()
    unknown |= {name for name, entries in tried.items() if sizes[name] and len(entries) > 1 and len({us for _, us in entries}) == 1}
    return {name: _search(() if name in unknown else tried[name], len(grids[name]), sizes[name] or (request.tokens,)) for name in grids}


def _few_tokens(request: Request, system: System) -> int | None:
    """Tokens per GPU that a search runs, at least 32; None: all, because the layer is small or no rows are sent."""
    each = layer_rows(request, system) // request.tokens
    n = 1 << max(5, (SEARCH_ROWS // each).bit_length() - 1)
    return None if system.moves.sent == "none" or request.tokens * each <= SEARCH_ROWS or n >= request.tokens else n


def _does_not_grow(before: Row, row: Row) -> str:
    """The operator whose time does not grow from `before` to `row`, which has more tokens; "" = none.

    Such an operator works in steps, for example a wave of chunks. Few tokens then say nothing about many.
    """
    for name in ("dispatch", "combine"):
        if row.path_us[name] > STEP_SHARE * row.time_us and row.path_us[name] < GROWTH * before.path_us[name]:
            return name.capitalize()
    return ""


def tune(systems: Mapping[str, System], request: Request) -> dict[str, TuningSearch]:
    """`search` for one call: at burst level, all ranks alike, in processes where they pay."""
    burst = dataclasses.replace(request, fidelity="burst", fabric=(), window=None, skew=None, waiting=False)
    options, workload = options_by_system(request.options, systems, request.model, request.cluster), make_workload(burst)
    if request.progress:
        request.progress(Step("", 1, 1, "header", header=header_of(Workload(request, workload.routing, workload.routing_s))))
    with Workers() as workers:
        return search(lambda jobs: workers.rows(jobs, request.progress, "search"), workload, systems, options)


def _grid(system: System, request: Request, knobs: Sequence[str]) -> list[Mapping[str, int]]:
    """The settings to try, at most `BUDGET`; the defaults are among them where they are tried at all. Several knobs share this number evenly."""
    values = {knob: _values_of(system, request, knob) for knob in knobs}
    most = next(n for n in range(BUDGET, 0, -1) if n ** len(values) <= BUDGET)
    thinned = [_thinned(numbers, most, default_of(system, knob)) for knob, numbers in values.items()]
    return [dict(zip(values, setting, strict=True)) for setting in itertools.product(*thinned)]


def default_of(system: System, knob: str) -> object:
    """The default of an option of a system."""
    return next(f.default for f in dataclasses.fields(system.options) if f.name == knob)


def _has_knob(system: System, request: Request, given: Mapping[str, Value], knob: str) -> bool:
    """Whether a system has an option `knob` that has an effect in this run and that `given` leaves open."""
    if knob in given or knob not in option_choices(system):
        return False
    return FIELDS[knob][1] == EVERYWHERE or is_real(str(given.get("form", "auto")), request.cluster)


def _values_of(system: System, request: Request, knob: str) -> Numbers:
    """Values of a knob inside the range of its choice, and inside the measured range of SMs."""
    rule = option_choices(system)[knob]
    if rule is None:
        return KNOBS[knob]
    low, high = int(rule.low or 1), int(rule.high or max(KNOBS[knob]))
    if knob == KNOB:
        high = min(high, request.cluster.n_sms)
        measured = measured_range(system.name, "sms", request.cluster.gpu, request.cluster.domains)
        if measured is not None:
            low, high = max(low, int(measured[0])), min(high, int(measured[1]))
    if knob == "group":
        high = min(high, request.cluster.n_gpus)
    return tuple(n for n in KNOBS[knob] if low <= n <= high or n == rule.automatic)


def fewest_near_best(times: Mapping[int, float]) -> int:
    """The smallest number whose time is within 1 % of the smallest time."""
    return min(n for n, us in times.items() if us <= NEAR * min(times.values()))


def edge_of(chosen: int, tried: Sequence[int]) -> str:
    """Whether the chosen number is the largest ("most") or smallest ("fewest") measured number, all of which were tried; "" = neither."""
    return "most" if chosen == max(tried) else "fewest" if chosen == min(tried) else ""


def _thinned(values: Sequence[int], most: int, default: object) -> list[int]:
    """At most `most` of the values, spread evenly, with `default` if it is a value."""
    if len(values) <= most:
        return list(values)
    kept = [v for v in values if v == default]
    others, n = [v for v in values if v != default], most - len(kept)
    kept += [others[(2 * i + 1) * len(others) // (2 * n)] for i in range(n)]
    return [v for v in values if v in kept]


def _search(tried: Sequence[tuple[Mapping[str, int], float]], n_settings: int, sizes: Sequence[int]) -> TuningSearch:
    best = min(tried, key=lambda entry: entry[1])[0] if tried else {}
    return TuningSearch(tuple(tried), best, n_settings * len(sizes), sizes[-1])


