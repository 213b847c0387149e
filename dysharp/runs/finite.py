"""What finite hardware leaves of a gain: headline at burst level, packet level with finite tables, and with one resource at a time without end.

Verdicts and their bound: docs/design/0038.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from dysharp.base import Amounts, ByName, Tally, Texts, frozen, named
from dysharp.runs.arguments import DEFAULT_CLUSTER, RequestArgs
from dysharp.specs import load_cluster

RESOURCES: Mapping[str, Tally] = {
    "AL TLB": {"fabric.al_entries": 1 << 20, "fabric.al_mshrs": 0},
    "reduction table": {"fabric.reduction_entries": 0},
    "MultimemQ": {"fabric.queue_entries": 0},
    "buffers": {"fabric.vc_flits": 0},
    "crossbar": {"fabric.speedup": 8},
}
"""Resource -> options of the packet level with which nothing waits for it. The AL Table is still read once for each row, as at burst level."""
ALL = "all"
"""Every resource without end: what is missing then, packets take."""
PACKETS = "packets in place of trains"
WITHOUT: Mapping[str, Tally] = {ALL: {key: value for one in RESOURCES.values() for key, value in one.items()}, **RESOURCES}
KEPT = 0.9
"""Part of a gain from which it holds."""
LEAST = 0.01
"""The smallest gain that is one: within it, runs differ by the order of packets."""
HOLDS, WEAKER, GONE, ABSENT = "holds", "weaker", "gone", "no gain"
"""What became of a gain. no gain: the headline has none."""


@frozen
class Survival:
    """A gain, as ratio of times. `headline`: burst level. `finite`: packet level, published sizes. `without`: {resource: ratio without its end}.

    `most`: the bound of a claim of no gain (at most this ratio); None: the claim is a gain. `nothing`: the ratio at which nothing is left; 0 for a
    share of an ideal system.
    """

    name: str
    headline: float
    finite: float
    without: Mapping[str, float]
    most: float | None = None
    nothing: float = 1.0

    @property
    def verdict(self) -> str:
        """holds: the finite run keeps `KEPT` of the gain. gone: nothing is left."""
        if self.most is not None:
            return HOLDS if self.finite <= max(self.most, self.headline) + LEAST else GONE
        if self.headline - self.nothing < LEAST:
            return ABSENT
        kept = (self.finite - self.nothing) / (self.headline - self.nothing)
        return HOLDS if kept >= KEPT else WEAKER if kept > 0 else GONE

    @property
    def taken(self) -> Amounts:
        """{resource: what the ratio gains without its end, or loses by packets}, the largest first."""
        found = {name: ratio - self.finite for name, ratio in self.without.items() if name != ALL}
        if ALL in self.without:
            found[PACKETS] = self.headline - self.without[ALL]
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    @property
    def resource(self) -> str:
        """What takes most of the gain; "" where nothing takes 0.01 of it, or nothing was asked."""
        name, most = next(iter(self.taken.items()), ("", 0.0))
        return name if round(most, 2) > 0 else ""

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        return named(self, "name", "headline", "finite", "verdict", "resource", "taken", "without", "sentence")

    @property
    def sentence(self) -> str:
        """In words."""
        takes = f"most takes: {self.resource} ({self.taken[self.resource]:.2f})" if self.resource else "no resource takes 0.01"
        found = f"{self.name}: {self.headline:.2f}x at burst level, {self.finite:.2f}x on finite hardware: {self.verdict}"
        return f"{found}; {takes}." if self.without else f"{found}."


def of_cluster(name: str) -> bool:
    """Whether the way `name` has no end of sums: in sub-layers the key of the cluster is the table of the Program, too, and 0 is any number."""
    return "fabric.reduction_entries" in WITHOUT.get(name, {})


def ways(request: RequestArgs) -> dict[str, ByName]:
    """{"headline", "finite", each of `WITHOUT`: the arguments of its run}. Options of the packet level stay in all but the headline."""
    given = dict(request.get("options") or {})
    headline = {key: value for key, value in given.items() if not key.startswith("fabric.")}
    packet: ByName = {**request, "fidelity": "packet"}
    without = {name: {**packet, "options": {**given, **more}} for name, more in WITHOUT.items()}
    for name in filter(of_cluster, WITHOUT if request.get("workload") is not None else ()):
        without[name]["cluster"] = replace(load_cluster(packet.get("cluster", DEFAULT_CLUSTER)), reduction_buffer_bytes=0)
    return {"headline": {**request, "fidelity": "burst", "window": None, "options": headline}, "finite": packet, **without}


def finite_lines(system: str, **request: Unpack[RequestArgs]) -> Texts:
    """What each resource takes of the time of `system`, in lines: a run for each of `ways`."""
    from dysharp.runs.run import run

    us = {name: run(system, **args).layer_us for name, args in ways(request).items()}
    parts = ", ".join(f"{name} {us['finite'] - us[name]:+.1f}" for name in RESOURCES)
    return (f"{system}: {us['finite']:.1f} us on finite hardware, {us[ALL]:.1f} with no end of any resource, {us['headline']:.1f} at burst level. "
            f"Each alone takes, us: {parts}",)  # fmt: skip
