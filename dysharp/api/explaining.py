"""`explain`: a real run beside what it could be."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from dysharp.api.arguments import ExplainArgs
from dysharp.api.profile_costs import GEMMS, ByModel, cluster_of, interval, machine_for, replayed, stepped, trained
from dysharp.api.profile_ranks import Rank, Waits, find_waits, read_rank, what_if
from dysharp.base import Amounts, Bools, ByName, ConfigError, Texts, by_key, check_word, frozen
from dysharp.costs import Machine
from dysharp.model import StepBatch, formats_of, layout_of, published
from dysharp.profiles.reader import Profile, read_profile
from dysharp.profiles.recognise import COPY, EXCHANGES, UNKNOWN, WAITING, Labels, kind_of, operators_of, passes_of, recognised, times_by
from dysharp.profiles.spans import covered, union
from dysharp.runs import in_formats, step_formats, takes
from dysharp.serving.layout import ServeLayout, serve_layout_of
from dysharp.specs import load_whole
from dysharp.training import Block, Dispatcher, TrainingRecipe

MOST_LOSSES = 3
SMALL = 2.0
"""A GEMM that takes so many times as long as its products has too few rows for its weights."""
LEAST_US = 1.0
"""Losses below the resolution of a profile are none."""
HOST_LOSSES = (
    ("host", "the host launches late: the GPU waits", "; a graph of the step has none of them"),
    ("stood", "the host stands in {}: the GPU waits", ""),
    ("unknown", "no launch says why nothing runs for", ""),
)
"""Kind of gaps -> words before and behind their numbers."""
EP_LIBRARIES: dict[str, tuple[str, Dispatcher]] = {"deepep": ("DeepEP", "deepep"), "nccl": ("NCCL and RCCL", "alltoall")}
"""EP library that was asked for -> the library of its kernels, and the dispatcher whose time is expected."""


@frozen
class OperatorTime:
    """An operator of a run: means over the ranks that were read, in microseconds of the whole profile.

    `expected`, `low`, `high`: of the kernels that shapes or the model say, None where they say nothing; `timed`: what these kernels took.
    `wait`: for other ranks, known where all ranks are read. `beside`: part of its time in which other streams run, of an exchange:
    in which they compute.
    """

    operator: str
    library: str
    kernels: int
    us: float
    timed: float
    expected: float | None
    low: float | None
    high: float | None
    floor: float
    below_floor: int
    wait: float | None
    beside: float


@frozen
class Loss:
    """Time that the run could do without. `kind`: host, wait, slow, copy, batch, library."""

    kind: str
    us: float
    text: str


@dataclass(frozen=True)
class Explanation:
    """A run beside what it could be. Times are microseconds of the profile, means over ranks."""

    files: Texts
    gpu: str
    cluster: str
    ranks: int
    steps: int
    span_us: float
    idle_us: float
    host_us: float
    recognised: float
    layers: tuple[int, int]
    passes: str
    layer_us: tuple[Amounts, ...]
    """Of the first rank, from one attention call to the next: microseconds from start to start (`whole`), idle ones, and those by operator."""
    exchange_us: float
    hidden_us: float
    losses: tuple[Loss, ...]
    operators: tuple[OperatorTime, ...]
    what_if: tuple[tuple[str, float], ...] = ()
    remarks: Texts = ()
    group: int = 1
    pair_bytes: Amounts = field(default_factory=dict)
    """Ranks that exchange rows, and bytes from one to each other in a call, where a model and a layout say them."""
    events: Any = field(default=(), repr=False, compare=False)
    """`Rank` of every file, for drawings; not in JSON."""

    @property
    def within(self) -> float:
        """Part of the time with an expectation that is within 15 % of it."""
        judged = [one for one in self.operators if one.expected]
        near = sum(one.timed for one in judged if abs(one.timed / (one.expected or 1.0) - 1) <= 0.15)
        return near / sum(one.timed for one in judged) if judged else math.nan

    def to_dict(self) -> ByName:
        """The answer as JSON has it."""
        return {name: value for name, value in asdict(replace(self, events=())).items() if name != "events"}


@frozen
class Difference:
    """Two runs by operator: (operator, microseconds of the first, of the second), the largest difference first."""

    first: Explanation
    second: Explanation
    rows: tuple[tuple[str, float, float], ...]

    @property
    def line(self) -> str:
        """The answer."""
        a, b = self.first.span_us, self.second.span_us
        named = ", ".join(f"{name} {then - now:+,.0f}" for name, now, then in self.rows[:3] if round(then - now))
        return f"the second run is {abs(b - a):,.0f} us ({abs(b / a - 1):.0%}) {'shorter' if b < a else 'longer'}" + f": {named} us" * bool(named)

    def to_dict(self) -> ByName:
        """The answer as JSON has it."""
        rows = [{"operator": name, "first_us": a, "second_us": b, "difference_us": b - a} for name, a, b in self.rows]
        return {"line": self.line, "rows": rows, "first": self.first.to_dict(), "second": self.second.to_dict()}


@takes(ExplainArgs)
def explain(*files: str | Path, **asked: Unpack[ExplainArgs]) -> Explanation | Difference:
    """A run beside what it could be, from profiles of torch.profiler: one rank, several ranks of one run, or two runs.

    Raises ConfigError for files that are no profiles, or that have no kernel of a transformer.
    """
    if asked["ep_library"]:
        check_word(asked["ep_library"], EP_LIBRARIES, f"ep_library: found {asked['ep_library'][:60]!r}")
    if not files:
        raise ConfigError("explain: found no file, expected profiles of torch.profiler")
    profiles = [read_profile(file) for file in files]
    if len(profiles) == 1 or (len({p.ranks for p in profiles}) == 1 < profiles[0].ranks and len({p.rank for p in profiles}) == len(profiles)):
        return _explained(profiles, asked)
    if len(profiles) > 2:
        raise ConfigError(f"explain: found {len(profiles)} files of several runs or with equal ranks, expected the ranks of one run, or two runs")
    first, second = (_explained([profile], asked) for profile in profiles)
    now, then = ({one.operator: one.us for one in run.operators} | {"idle": run.idle_us} for run in (first, second))
    rows = [(name, now.get(name, 0.0), then.get(name, 0.0)) for name in dict.fromkeys((*now, *then))]
    return Difference(first, second, tuple(sorted(rows, key=lambda row: -abs(row[2] - row[1]))))


def _explained(profiles: list[Profile], asked: ExplainArgs) -> Explanation:
    profiles.sort(key=lambda p: p.rank)
    lead = profiles[0]
    labels = [operators_of(p) for p in profiles]
    found = Counter(labels[0].tolist())
    if sum(found[name] for name in ("GEMM", "grouped GEMM", "attention")) <= found["convolution"]:
        raise ConfigError(f"{lead.path}: found {', '.join(list(times_by(labels[0], lead.us))[:3])}, expected kernels of a transformer")
    trains = bool(found["attention backward"] or found["optimizer"] > 1 or any(kind_of(name).backward for name in lead.names))
    machine = machine_for(cluster_of(lead, asked["cluster"]), trains)
    ranks = [read_rank(machine, profile, label) for profile, label in zip(profiles, labels, strict=True)]
    ahead, back = (_calls(lead, labels[0], name) for name in ("attention", "attention backward"))
    layers = len(ahead), len(back)
    passes = passes_of("".join(word for _, word in sorted([*((at, "F") for at in ahead), *((at, "B") for at in back)])))
    model, again = _of_model(machine, asked, lead, labels[0], layers)
    remarks = _remarks(lead) + ([f"computed again before the backward pass, by counts of kernels: {', '.join(again)}"] if again else [])
    waited = find_waits(ranks)
    told = {name for name, _ in waited}
    if untold := [name for name in EXCHANGES if len(ranks) > 1 and name not in told and any(r.of(name).any() for r in ranks)]:
        remarks.append(f"who waits for whom in {', '.join(untold)} is not told: unequal numbers, no common group, or sends from rank to rank")
    rows = tuple(_operator(machine, ranks, name, model, name in told) for name in times_by(labels[0], lead.us))
    exchanged, hidden = _overlap(ranks)
    losses = sorted((loss for loss in _losses(ranks, rows, machine, asked["ep_library"], waited) if loss.us >= LEAST_US), key=lambda loss: -loss.us)
    return Explanation(
        tuple(p.path for p in profiles), lead.gpu, machine.cluster.name, lead.ranks, lead.steps, _mean(r.profile.span for r in ranks),
        _mean(r.idle.us for r in ranks),
        _mean(r.idle.host.us + r.idle.stood.us for r in ranks), min(recognised(r.labels, r.us) for r in ranks), layers, passes,
        _by_layer(ranks[0], ahead if len(ahead) else back), exchanged, hidden, tuple(losses[:MOST_LOSSES]), rows,
        tuple(what_if(one, ranks, model) for one in asked["what_if"]), tuple(remarks),
        (serve_layout_of if asked["batch"] else layout_of)(asked["layout"]).ep if asked["layout"] else 1, model.pair_bytes if model else {},
        tuple(ranks),
    )  # fmt: skip


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _calls(profile: Profile, labels: Labels, operator: str) -> list[float]:
    """When an operator is called: its kernels in a row on a stream are one call, as products or norms of its layer stand between two calls."""
    found = list[float]()
    for stream in np.unique(profile.stream):
        events = np.flatnonzero((profile.stream == stream) & np.isin(labels, (operator, "GEMM", "grouped GEMM", "norm")))
        own: Bools = labels[events] == operator
        found += profile.start[events[own & ~np.r_[False, own[:-1]]]].tolist()
    return sorted(found)


def _by_layer(rank: Rank, calls: list[float]) -> tuple[Amounts, ...]:
    start, at = rank.profile.start, np.array([*calls, rank.profile.span])
    layer, whole = np.searchsorted(calls, start, "right") - 1, np.diff(at)
    gone = whole - covered(union(start, start + rank.us), at[:-1], at[1:])
    parts = (times_by(rank.labels[layer == n], rank.us[layer == n]) for n in range(len(calls)))
    return tuple({"whole": float(us), "idle": float(gap)} | {name: took for name, (took, _) in one.items()}
                 for us, gap, one in zip(whole, gone, parts, strict=True))  # fmt: skip


def _of_model(machine: Machine, asked: ExplainArgs, profile: Profile, labels: Labels, layers: tuple[int, int]) -> tuple[ByModel | None, Texts]:
    """Expectations of the model that was given, and modules that a training step computes again."""
    if not asked["model"]:
        if said := next((name for name in ("layout", "batch", "sequence", "precision") if asked[name]), ""):
            raise ConfigError(f"explain: found --{said} without --model, expected both")
        return None, ()
    whole = load_whole(asked["model"])
    if asked["batch"]:
        if profile.ranks > 1 and not asked["layout"]:
            raise ConfigError(f"explain: found --batch and {profile.ranks} ranks, expected the server's --layout, such as tp={profile.ranks}")
        batch = StepBatch(decodes=asked["batch"], context=asked["sequence"] or 1024)
        layout = serve_layout_of(asked["layout"]) if asked["layout"] else ServeLayout()
        steps = max(1, round(layers[0] / max(1, sum(not whole.is_linear(n) for n in range(whole.n_layers)))))
        return stepped(machine, whole, layout, batch, formats_of(asked["precision"] or published(whole), model=whole), steps), ()
    if asked["layout"]:
        if not whole.layer and np.isin(labels, ("dispatch", "combine")).any():
            raise ConfigError(f"explain: found {whole.name}, which has no experts, expected the model whose rows {profile.path} dispatches")
        found, formats = Counter(labels.tolist()), step_formats(asked["precision"], whole)
        norms = sum(not kind_of(profile.names[n]).backward for n in profile.name[labels == "norm"])
        again = replayed(whole, found, norms, layers[0]) if layers[1] else ()
        recipe = TrainingRecipe(dispatcher=EP_LIBRARIES[asked["ep_library"] or "deepep"][1], recompute=again)
        whole, recipe = in_formats(whole, recipe, formats, machine)
        cast = np.isin(profile.stream[labels == "cast"], profile.stream[labels == "dispatch"]).any()
        block = Block(whole, machine, layout_of(asked["layout"]), asked["sequence"] or 4096, recipe)
        return trained(block, found, *layers, formats.sent or ("fp8" if cast else "bf16")), again
    raise ConfigError("explain: found a model without --layout (training) and --batch (decode), expected one of them")


def _remarks(profile: Profile) -> list[str]:
    left_out = f"{profile.left_out} events without a finite time and duration were left out"
    return [f"{profile.path}: the file ends before its events do"] * profile.cut + [left_out] * (profile.left_out > 0)


def _operator(machine: Machine, ranks: list[Rank], name: str, model: ByModel | None, told: bool) -> OperatorTime:
    events = [r.of(name) for r in ranks]
    known = [own & ~np.isnan(r.expected) for r, own in zip(ranks, events, strict=True)]

    def mean(column: str, chosen: list[Bools] = events) -> float:
        return _mean(getattr(r, column)[own].sum() for r, own in zip(ranks, chosen, strict=True))

    us, timed = mean("us"), mean("us", known)
    expected = mean("expected", known) if timed else None
    beside = mean("beside") / us if us else 0.0
    if model and name in model.us and timed < us / 2:
        timed, expected = us, model.us[name] / (1 - (0.0 if name in EXCHANGES else model.beside * min(1.0, beside)))
    if expected:
        stretch = us / (mean("own") or us)
        expected *= stretch
        for r, own, by_shape in zip(ranks, events, known, strict=True):
            r.should[own] = r.us[own] * (expected / us) if timed == us else np.where(by_shape[own], r.expected[own] * stretch, math.nan)
    below = sum(int((r.floors[own] > r.us[own]).sum()) for r, own in zip(ranks, events, strict=True))
    count = round(_mean(own.sum() for own in events))
    low, high = interval(machine, name, expected / count).around(expected) if expected and machine.cluster.gpu else (None, None)
    libraries = Counter(kind_of(r.profile.names[n]).library or "driver" for r, own in zip(ranks, events, strict=True) for n in r.profile.name[own])
    floor, wait = mean("floors"), mean("waited") if told else None
    return OperatorTime(name or "unknown", libraries.most_common(1)[0][0], count, us, timed, expected, low, high, floor, below, wait, beside)


def _overlap(ranks: list[Rank]) -> tuple[float, float]:
    """(microseconds of exchanges, of these beside computing)."""
    every, hidden = [], []
    for r in ranks:
        own: Bools = np.isin(r.labels, EXCHANGES)
        start, end = r.profile.start, r.profile.start + r.us
        spans = union(start[own], end[own])
        every.append(float((spans[:, 1] - spans[:, 0]).sum()))
        hidden.append(float(covered(union(start[~own], end[~own]), spans[:, 0], spans[:, 1]).sum()))
    return _mean(every), _mean(hidden)


def _losses(ranks: list[Rank], rows: Sequence[OperatorTime], machine: Machine, library: str, waited: Waits) -> list[Loss]:
    span, found = _mean(r.profile.span for r in ranks), {row.operator: row for row in rows}
    out = [*(_late(ranks, waited) if waited else ()), *_host(ranks, span), *_small(ranks, machine), *(_library(found, library) if library else ())]
    for row in rows:
        beside = row.beside if row.operator in EXCHANGES else 0.0  # an exchange that is hidden gains nothing
        hidden = f" ({beside:.0%} of it beside computing)" * bool(round(100 * beside))
        if row.operator == WAITING and not waited:
            out.append(Loss("wait", (1 - beside) * row.us, f"{row.kernels} kernels wait {row.us:,.0f} us{hidden} for other ranks to say how many "
                            "rows come; profiles of all ranks show whom they wait for"))  # fmt: skip
        elif row.operator == COPY:
            longest = max(ranks, key=lambda r: r.us[r.of(COPY)].max(initial=0.0))
            own = np.flatnonzero(longest.of(COPY))
            worst = int(own[np.argmax(longest.us[own])])
            where = f"{longest.us[worst]:,.0f} us at {longest.profile.start[worst] / 1e3:,.2f} ms"
            name = longest.profile.names[longest.profile.name[worst]][:60]
            out.append(Loss("copy", row.us, f"{row.kernels} copies take {row.us:,.0f} us ({row.us / span:.0%}); the longest, {where}: {name}"))
        elif row.expected and row.timed - (row.wait or 0.0) > row.expected:
            over = row.timed - (row.wait or 0.0) - row.expected
            at_most = " at most, or waits for other ranks" if row.operator in EXCHANGES and len(ranks) < max(2, ranks[0].profile.ranks) else ""
            out.append(Loss("slow", (1 - beside) * over, f"{row.operator}: {row.timed:,.0f} us{hidden} where {machine.cluster.name} needs "
                            f"{row.expected:,.0f} ({row.low:,.0f} to {row.high:,.0f}): {over:,.0f} us{at_most}"))  # fmt: skip
    return out


def _late(ranks: list[Rank], waited: Waits) -> list[Loss]:
    """The rank that comes last, what the others wait, and what it does longer than they do."""
    sums = {members: np.sum(each, axis=0) for members, each in by_key((members, us) for (_, members), us in waited.items()).items()}
    members, each = max(sums.items(), key=lambda one: float(one[1].sum()))
    together, last = [ranks[n] for n in members], int(np.argmin(each))
    ours, *others = [{name: us for name, (us, _) in r.times.items() if name not in (*EXCHANGES, UNKNOWN)} | {"idle": r.idle.us}
                     for r in (together[last], *(r for n, r in enumerate(together) if n != last))]  # fmt: skip
    usual = {name: float(np.median([one.get(name, 0.0) for one in others])) for name in ours}
    why = max(ours, key=lambda name: ours[name] - usual[name])
    stood = together[last].idle.stood
    host = f"its host stands in {_stood_in(together[last])}" if stood.us > ours["idle"] / 2 else "its host or a sleep"
    cause = (f"nothing runs on it for {ours[why] - usual[why]:,.0f} us more than on the others: {host}" if why == "idle"
             else f"its {why} takes {ours[why] / usual[why] if usual[why] else math.inf:.1f} times as long ({ours[why]:,.0f} and "
             f"{usual[why]:,.0f} us)")  # fmt: skip
    if why == "grouped GEMM":
        cause += ": its experts have more rows"
    mean = float(np.delete(each, last).mean())
    most = max((name for name, own in waited if own == members), key=lambda name: float(waited[name, members].sum()))
    read = f" of the {len(ranks)} that were read" if len(together) == len(ranks) < ranks[last].profile.ranks else ""
    of = f" of ranks {', '.join(str(r.profile.rank) for r in together)}" if len(together) < len(ranks) else read
    return [Loss("wait", mean, f"rank {together[last].profile.rank} comes last to {most}{of}, the others wait {mean:,.0f} us; {cause}")]


def _host(ranks: list[Rank], span: float) -> list[Loss]:
    """What the host costs: late launches, calls in which it stands, gaps without a cause."""
    out = []
    for kind, said, more in HOST_LOSSES:
        each = [getattr(r.idle, kind) for r in ranks]
        us, n, worst = _mean(one.us for one in each), round(_mean(one.n for one in each)), max(each, key=lambda one: one.largest)
        text = f"{said.format(_stood_in(ranks[each.index(worst)]))} {us:,.0f} us of {span:,.0f} ({us / span:.0%}) in {n} gap{'s' * (n != 1)}, "
        out.append(Loss("host", us, f"{text}the longest, {worst.largest:,.0f} us at {worst.at / 1e3:,.2f} ms{more}"))
    return out


def _stood_in(rank: Rank) -> str:
    """The shortest call of the host that covers most of the longest gap in which it stands."""
    (start, end, by), gap = rank.profile.stands.T, rank.idle.stood
    most = np.flatnonzero((2 * (np.minimum(end, gap.at + gap.largest) - np.maximum(start, gap.at)) > gap.largest) & (by == gap.by))
    return rank.profile.stands_in[int(most[np.argmin((end - start)[most])])][:60] if len(most) else "long calls"


def _small(ranks: list[Rank], machine: Machine) -> list[Loss]:
    """GEMMs with so few rows that they wait for weights."""
    lead = ranks[0]
    own = np.flatnonzero(lead.of("GEMM") & (lead.floors > 0) & (lead.expected > SMALL * np.maximum(lead.floors, 1e-9)))
    each = np.array([call.shapes[GEMMS[call.name]][-2] for call in map(lead.profile.calls.__getitem__, lead.profile.call[own])], int)
    few = each * machine.gpu.hbm_GBps < 1e3 * machine.gpu.datasheet.peak_TFLOPS("bf16")  # their weights are read for longer than they multiply
    own = own[few]
    if not len(own):
        return []
    over, took = float((lead.expected - lead.floors)[own].sum()), float(lead.us[own].sum())
    over = min(over, took - float(lead.floors[own].sum()))
    return [Loss("batch", max(0.0, over), f"{len(own)} GEMMs with few rows ({each[few].min()}) wait for weights: {over:,.0f} of {took:,.0f} us; "
                 f"{np.median(lead.expected[own] / lead.floors[own]):.0f} times the rows take about as long")]  # fmt: skip


def _library(found: Mapping[str, OperatorTime], library: str) -> list[Loss]:
    """Another library than the one that was asked for moved the rows."""
    moved = [found[name] for name in ("dispatch", "combine", "send and receive") if name in found]
    wrong = [row for row in moved if row.library != EP_LIBRARIES[library][0]]
    if not wrong:
        return []
    us = sum(row.us for row in wrong)
    names = " and ".join(dict.fromkeys(row.library for row in wrong))
    return [Loss("library", us, f"{names} moved the rows ({us:,.0f} us), and not {library}, which was asked for")]
