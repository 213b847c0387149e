"""One rank of a profile with its expectations, what ran beside each event, and the events with one thing changed (`--what-if`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dysharp.api.profile_costs import ByModel, by_event
from dysharp.base import F64, Bools, ConfigError, by_key, check_word
from dysharp.costs import Machine
from dysharp.planning.quick import IN_TURN
from dysharp.planning.space import SYSTEMS
from dysharp.profiles.reader import GROUP, Profile
from dysharp.profiles.recognise import EXCHANGES, WAITING, Labels, times_by
from dysharp.profiles.spans import Idle, covered, idle, replay, shares, union, waits

SENDS = ("send", "recv", "coalesced")
"""What PyTorch calls sends from one rank to another: only these two end together, not all ranks of a larger group."""
AT_BEST = {"dysharp": "in-switch"}
"""System -> the bound of `planning.space.SYSTEMS` that stands for it."""


Waits = dict[tuple[str, tuple[int, ...]], F64]
"""(operator, places of the ranks that call it together) -> microseconds that each of them waited."""


@dataclass(slots=True)
class Rank:
    """One rank, read and recognised. Arrays have an entry per event of the GPU.

    `expected`: microseconds by shapes, nan where these do not say them; `beside`: in which other streams run, of exchanges: in which they compute;
    `own`: with equal parts for kernels that compute at once; `waited`: for other ranks, 0 where that is not known; `should`: expected beside what
    ran, nan where nothing is.
    """

    profile: Profile
    labels: Labels
    expected: F64
    floors: F64
    beside: F64
    own: F64
    waited: F64 = field(init=False)
    should: F64 = field(init=False)
    idle: Idle = field(init=False)
    times: dict[str, tuple[float, int]] = field(init=False)

    def __post_init__(self) -> None:
        profile = self.profile
        self.waited, self.should = np.zeros(len(profile.us)), np.full(len(profile.us), math.nan)
        self.times = times_by(self.labels, profile.us)
        self.idle = idle(profile.start, profile.us, profile.launched, profile.by, profile.stands)

    @property
    def us(self) -> F64:
        """Microseconds of its events."""
        return self.profile.us

    def of(self, operator: str) -> Bools:
        """Events of an operator."""
        own: Bools = self.labels == operator
        return own


def read_rank(machine: Machine, profile: Profile, labels: Labels) -> Rank:
    """Expectations by shape, gaps, and what runs beside each event on other streams."""
    expected, floors = by_event(machine, profile, labels)
    end, beside, own = profile.start + profile.us, np.zeros(len(labels)), profile.us.copy()
    exchanges: Bools = np.isin(labels, EXCHANGES)
    for line in (profile.stream == number for number in np.unique(profile.stream)):
        for events, others in ((line & ~exchanges, ~line), (line & exchanges, ~line & ~exchanges)):
            beside[events] = covered(union(profile.start[others], end[others]), profile.start[events], end[events])
    computes: Bools = (profile.what == 0) & ~exchanges
    own[computes] = shares(profile.start[computes], end[computes])
    return Rank(profile, labels, expected, floors, beside, own)


def find_waits(ranks: list[Rank]) -> Waits:
    """Waits of ranks that call an operator equally often, in one process group; kernels that name no group are of all ranks. Fills `Rank.waited`."""
    out: Waits = {}
    for name in EXCHANGES if len(ranks) > 1 else ():
        calls = ((r.profile.collectives.get(at, {}), (n, at)) for n, r in enumerate(ranks) for at in np.flatnonzero(r.of(name)).tolist())
        whole = ((said, call) for said, call in calls if said.get("Collective name") not in SENDS or said.get("Group size") == 2)
        for group in by_key((str(said.get(GROUP, "")), call) for said, call in whole).values():
            events = by_key(group)
            if len(events) > 1 and len({len(one) for one in events.values()}) == 1:
                each = waits(np.array([ranks[n].us[own] for n, own in events.items()]))
                out[name, tuple(events)] = out.get((name, tuple(events)), 0.0) + each.sum(axis=1)
                for (n, own), waited in zip(events.items(), each, strict=True):
                    ranks[n].waited[own] = waited
    return out


def what_if(text: str, ranks: list[Rank], model: ByModel | None) -> tuple[str, float]:
    """(change, microseconds of the run with it): the measured events of each rank, replayed with one thing changed."""
    word, _, value = text.partition("=")
    if word == "graph" and not value:
        return "launches from a graph", float(np.mean([r.profile.span - r.idle.host.us for r in ranks]))
    if word == "balanced" and not value:
        if not find_waits(ranks) and (len(ranks) > 1 or not ranks[0].of(WAITING).any()):
            what = "one rank" if len(ranks) == 1 else "ranks whose exchanges are not equally many"
            raise ConfigError(f"what-if: found balanced and {what}, whose waits no profile tells, expected profiles of several ranks of a group")
        return "no rank waits for another", _replayed(ranks, {WAITING: 0.0} if len(ranks) == 1 else {}, keep=0.0)
    if word == "links" and value.replace(".", "", 1).isdecimal() and 0 < float(value) < math.inf:
        return f"links {value} times as fast", _replayed(ranks, {name: 1 / float(value) for name in EXCHANGES if name != WAITING or len(ranks) > 1})
    if word == "system":
        known = (*SYSTEMS, *AT_BEST, *IN_TURN)
        check_word(value, known, f"what-if: system: found {value[:60]!r}")
        if model is None or model.other is None:
            raise ConfigError("what-if: found a system without --model and --layout of a run with experts, expected both")
        best = AT_BEST.get(value, value) if value in (*AT_BEST, *SYSTEMS[-2:]) else ""
        return f"rows moved by {value}" + (", at its best" if best else ""), _replayed(ranks, model.other(best or value))
    raise ConfigError(f"what-if: found {text[:60]!r}, expected graph, balanced, links=FACTOR or system=NAME")


def _replayed(ranks: list[Rank], factors: Mapping[str, float], keep: float = 1.0) -> float:
    """Mean microseconds of the ranks where operators move for `factors` of their time, and the part `keep` of waits stays."""
    spans = []
    for r in ranks:
        scale = np.ones(len(r.us))
        for name, factor in factors.items():
            scale[r.of(name)] = factor
        spans.append(replay(r.profile.start, r.us, r.profile.stream, keep * r.waited + scale * (r.us - r.waited)))
    return float(np.mean(spans))
