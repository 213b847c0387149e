"""`network`: latency against load of one switch or network, flit by flit; its setting, from a cluster, the name of a recorded curve or numbers."""

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Unpack

from dysharp.api.arguments import NetworkArgs, SettingArgs
from dysharp.base import Amounts, ByName, Column, Columns, ConfigError, Tally, check_word, frozen, nearest
from dysharp.engine.compiling import on_compile
from dysharp.engine.flit.config import PATTERNS, WORD, NetworkConfig, RouterConfig, Traffic
from dysharp.engine.flit.curves import MEAN_ERROR, POINT_ERROR, RATE_ERROR, CurveError, CurveRow, compare_curves, curve_errors, read_curves
from dysharp.engine.flit.network import NetworkPoint, Protocol, measure
from dysharp.engine.flit.traffic import Draws, packet_rate
from dysharp.runs import Progress, takes, telling
from dysharp.specs import Cluster, load_cluster
from dysharp.specs.arguments import checked

MAX_LOADS = 1000
GROUPS = 2  # groups of virtual channels: requests, answers
HEADER_FLITS, PACKET_BYTES = 1, 128  # header and payload of a store

DELAYS = {  # name on the command line: (owner, field)
    "terminal": ("network", "terminal_delay"),
    "link": ("network", "link_delay"),
    "routing": ("router", "routing_delay"),
    "vc": ("router", "vc_alloc_delay"),
    "switch": ("router", "sw_alloc_delay"),
    "traversal": ("router", "traversal_delay"),
    "credit": ("router", "credit_delay"),
}
FIELDS = {  # argument of `_network_setting`: (owner, fields)
    "topology": ("network", "topology"),
    "k": ("network", "k"),
    "n": ("network", "n"),
    "vcs": ("router", "num_vcs"),
    "buffer": ("router", "vc_buf_size"),
    "speedup": ("router", "internal_speedup"),
    "lanes": ("router", "input_speedup", "output_speedup"),
    "allocator": ("router", "vc_allocator", "sw_allocator"),
    "speculative": ("router", "speculative"),
    "hold_switch": ("router", "hold_switch"),
}
_SHAPES = r"(?P<x>xbar(?P<xk>\d+))|(?P<f>fly(?P<fk>\d+)x(?P=fk))|(?P<t>fattree(?P<tk>\d+)x(?P<tn>\d+))"
_SUFFIXES = ("int2", "io2", "islip", "spec", "rd1", "hot4")


@frozen
class _Setting:
    """A network, its traffic, and the length of a cycle in ps (0 = not known)."""

    name: str
    config: NetworkConfig
    traffic: Traffic
    cycle_ps: int = 0


def _parse_loads(text: str) -> tuple[float, ...]:
    """Ascending loads from a text such as `0.1,0.2,0.5` or `first:last:step`. A load is above 0 and at most 1."""
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            if not (math.isfinite(first) and math.isfinite(last) and step > 0 and (last - first) / step < MAX_LOADS):
                raise ValueError
            loads = [round(first + i * step, 12) for i in range(math.floor((last - first) / step + 1e-9) + 1)]
        else:
            loads = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"load: found {text[:60]!r}, expected loads such as 0.1,0.5,0.9 or first:last:step such as 0.05:0.95:0.05") from None
    if not loads or len(loads) > MAX_LOADS:
        raise ConfigError(f"load: found {len(loads)} loads in {text[:60]!r}, expected 1 to {MAX_LOADS}")
    for load in loads:
        if not 0 < load <= 1:
            raise ConfigError(f"load: found {load:g}, expected flits per cycle and terminal above 0 and at most 1")
    return tuple(sorted(dict.fromkeys(loads)))


def _parse_delays(text: str) -> Tally:
    """{name of DELAYS: cycles} from a text such as `terminal=10,link=5`."""
    delays: Tally = {}
    for part in text.split(","):
        name, equals, value = (p.strip() for p in part.partition("="))
        check_word(name, DELAYS, f"delays: found {name[:40]!r}")
        if not equals or not value.isascii() or not value.isdigit():
            raise ConfigError(f"delays: found {part.strip()[:40]!r}, expected {name}=CYCLES, a whole number")
        delays[name] = int(value)
    return delays


def _parse_traffic(pattern: str, packet_flits: int, burst: str | None = None) -> Traffic:
    """Traffic from the text of a pattern.

    Patterns: `uniform`, the name of a permutation, `permutation:T,...`, `hotspot:W,...` (weights of the first terminals;
    all other terminals have weight 1). `burst`: `ON:OFF` in cycles.
    """
    name, colon, values = pattern.partition(":")
    check_word(name, PATTERNS, f"pattern: found {name[:40]!r}")
    if colon and name not in ("hotspot", "permutation"):
        raise ConfigError(f"pattern: found {pattern[:60]!r}, expected no values with {name}")
    states = None
    try:
        weights = tuple(float(v) for v in values.split(",")) if name == "hotspot" else ()
        targets = tuple(int(v) for v in values.split(",")) if name == "permutation" else ()
    except ValueError:
        raise ConfigError(f"pattern: found {pattern[:60]!r}, expected numbers, such as hotspot:4 or permutation:1,0,3,2") from None
    if burst is not None:
        try:
            on, off = (float(v) for v in burst.split(":"))
        except ValueError:
            raise ConfigError(f"burst: found {burst[:40]!r}, expected ON:OFF, mean cycles of the two states, such as 50:50") from None
        states = (on, off)
    return Traffic(name, packet_flits, weights, targets, states)


def _curve_setting(name: str) -> _Setting:
    """The setting of a recorded curve, from its name, such as `xbar8_d10_v4b8_p9_int2` (docs/network.md)."""
    match = re.fullmatch(rf"(?:{_SHAPES})(?:_d(?P<d>\d+))?_v(?P<v>\d+)b(?P<b>\d+)_p(?P<p>\d+)(?P<rest>(?:_\w+?)*)", name)
    if match is None:
        raise ConfigError(f"curve: found {name[:60]!r}, expected a name such as xbar8_v4b8_p9_int2, fly4x4_v4b8_p1 or fattree4x2_v4b8_p9_transpose")
    words = [w for w in match["rest"].split("_") if w and not re.fullmatch(r"seed\d+", w)]
    patterns = [w for w in words if w in PATTERNS]
    for word in words:
        check_word(word, (*_SUFFIXES, *PATTERNS), f"curve: found {word[:40]!r} in {name[:60]!r}")
    islip, lanes = "islip" if "islip" in words else "separable_input_first", 2 if "io2" in words else 1
    router = RouterConfig(
        int(match["v"]), int(match["b"]), islip, islip, 2 if "int2" in words else 1, lanes, lanes, "spec" in words, int("rd1" in words)
    )
    k, n = next((int(match[f"{key}k"]), match.groupdict().get(f"{key}n")) for key in ("x", "f", "t") if match[key])
    shape = "fattree" if match["t"] else "fly"
    config = NetworkConfig(shape, k, int(n or (2 if match["f"] else 1)), router, terminal_delay=int(match["d"] or 1))
    pattern = "hotspot:4" if "hot4" in words else (patterns or ["uniform"])[0]
    return _Setting(name, config, _parse_traffic(pattern, int(match["p"])))


def _cluster_setting(cluster: Cluster, ports: int | None = None) -> _Setting:
    """The setting of one switch of a cluster under 128 B stores.

    `ports`: ports of the network; None: the ports of the switch. Virtual channels of both groups, the speed-up and the
    link delay come from the cluster.
    """
    if not cluster.n_switches:
        raise ConfigError(f'cluster "{cluster.name}": found no switch (every pair of GPUs has a link), expected one')
    if ports is None:
        ports = -(-cluster.n_gpus * cluster.links_per_gpu // cluster.n_switches)
        if ports > WORD:
            raise ConfigError(f'cluster "{cluster.name}": found a switch of {ports} ports, expected at most {WORD}; set k to take a part of it')
    cycle_ps = round(cluster.flit_bytes * 1_000_000 * cluster.links_per_gpu / cluster.link_bytes_per_us)
    if not cluster.vc_flits:
        raise ConfigError(f'cluster "{cluster.name}": found virtual channels of infinite depth, expected a number of flits; set --buffer')
    router = RouterConfig(GROUPS * cluster.n_vcs, cluster.vc_flits, internal_speedup=cluster.internal_speedup)
    delay = max(1, round(cluster.link_latency_ps / cycle_ps))
    config = NetworkConfig("fly", ports, 1, router, terminal_delay=delay)
    return _Setting(f"one switch of {cluster.name}", config, Traffic("uniform", HEADER_FLITS + PACKET_BYTES // cluster.flit_bytes), cycle_ps)


def _network_setting(
    *, cluster: str | None = None, curve: str | None = None, packet_flits: int | None = None, pattern: str | None = None,
    burst: str | None = None, delays: str | None = None, **fields: Any,
) -> _Setting:  # fmt: skip
    """The setting of a base with changes: every argument that is not None replaces a value of the base.

    Base: `cluster`, `curve`, or one 8 x 8 router with 4 virtual channels of 8 flits. `fields`: arguments of `FIELDS`, with a value for the
    network or its router. Raises ConfigError for another name.
    """
    if cluster is not None and curve is not None:
        raise ConfigError(f"network: found both cluster {cluster[:40]!r} and curve {curve[:40]!r}, expected one of the two")
    base = _Setting("network", NetworkConfig(), Traffic())
    if cluster is not None:
        base = _cluster_setting(load_cluster(cluster), fields.get("k"))
    elif curve is not None:
        base = _curve_setting(curve)
    changed: dict[str, ByName] = {"network": {}, "router": {}}
    for name, value in fields.items():
        check_word(name, FIELDS, f"network: found the argument {name!r}")
        owner, *names = FIELDS[name]
        changed[owner] |= {} if value is None or value is False else dict.fromkeys(names, value)
    for name, cycles in (_parse_delays(delays) if delays is not None else {}).items():
        owner, field = DELAYS[name]
        changed[owner][field] = cycles
    config = replace(base.config, router=replace(base.config.router, **changed["router"]), **changed["network"])
    flits = base.traffic.packet_flits if packet_flits is None else packet_flits
    traffic = replace(base.traffic, packet_flits=flits) if pattern is None else _parse_traffic(pattern, flits)
    if burst is not None:
        traffic = replace(traffic, burst=_parse_traffic("uniform", 1, burst).burst)
    return _Setting(base.name, config, traffic, base.cycle_ps)


LOADS = "0.1:0.9:0.1"
STEP = 1 / 128  # width at which the search for saturation ends


@frozen
class NetworkCurve:
    """Points of one network, by load. `saturation`: result of the search, {load, accepted, saturated_at, accepted_at}, or None."""

    setting: _Setting
    protocol: Protocol
    seed: int
    points: tuple[NetworkPoint, ...]
    saturation: Amounts | None

    @property
    def flits_per_s(self) -> float:
        """Flits delivered per second of the cycle loop, over all points."""
        seconds = sum(p.kernel_s for p in self.points)
        return sum(p.n_flits for p in self.points) / seconds if seconds else 0.0

    @property
    def notes(self) -> list[str]:
        """Lines about unexpected behaviour of this network."""
        c, flits, size = self.setting.config, self.setting.traffic.packet_flits, self.setting.config.router.vc_buf_size
        loop = 2 * max(c.terminal_delay, c.link_delay) + 2 + c.router.credit_delay
        long = f"note: a packet is longer than a virtual channel ({size} flits); the rest of its flits waits for credits, which take {loop} cycles"
        begin, way = self.protocol.period * self.protocol.warmup_periods, min((p.packet_latency_min for p in self.points if p.n_packets), default=0)
        early = f"warning: measured from cycle {begin} on, but a packet takes {way} cycles or more: rates are too low; expected a longer --period"
        return [long] * (flits > size) + [early] * (begin < way)

    def __str__(self) -> str:
        """One line per load."""
        load, _, accepted, latency, *_, saturated = POINTS.own
        return POINTS.like(load, accepted, latency._replace(heading="latency, cycles"), saturated).screen(self.points)

    @property
    def columns(self) -> Columns:
        """Of `points`: also the time of a latency where the length of a cycle is known."""
        if not (cycle_ps := self.setting.cycle_ps):
            return POINTS
        return POINTS.like(*POINTS.own[:-1], Column("ns", "latency\nns", ".1f", lambda p: p.packet_latency * cycle_ps / 1000), POINTS.own[-1])

    def __repr__(self) -> str:
        return f"<NetworkCurve of {self.setting.name}, {len(self.points)} loads; print() shows the table, to_dict() all>"

    def to_dict(self) -> ByName:
        """Plain values; a latency without a measured packet is None."""
        return {
            "network": self.setting.name, "config": asdict(self.setting.config) | {"terminals": self.setting.config.n_terminals},
            "traffic": asdict(self.setting.traffic), "cycle_ps": self.setting.cycle_ps or None, "protocol": asdict(self.protocol),
            "seed": self.seed, "points": [_plain(p, self.setting.cycle_ps) for p in self.points], "saturation": self.saturation,
            "notes": self.notes, "flits_per_s": self.flits_per_s,
        }  # fmt: skip


def _plain(p: NetworkPoint, cycle_ps: int) -> ByName:
    row: ByName = {}
    for name, value in asdict(p).items():
        if name == "hops" and cycle_ps:
            row["latency_ns"] = p.packet_latency * cycle_ps / 1000
        row[f"{name.removeprefix('packet_')}_cycles" if "_latency" in name else name] = value
    del row["seed"], row["kernel_s"]
    return _numbers(row) | POINTS.more(p)


def _numbers(row: ByName) -> ByName:
    """None for what is not a number."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


POINTS = Columns(
    "load:.4g", "injected:.4f", "accepted:.4f", "latency\ncycles=packet_latency:.2f", "in network\ncycles=network_latency:.2f",
    Column("range", "min / max\ncycles", of=lambda p: f"{p.packet_latency_min} / {p.packet_latency_max}", number=True),
    Column("saturated", " ", of=lambda p: "saturated" * p.saturated),
)  # fmt: skip


@takes(NetworkArgs)
def network(load: str | float | Iterable[float] = LOADS, **request: Unpack[NetworkArgs]) -> NetworkCurve:
    """Latency against load of one network, flit by flit: virtual channels, credits, allocators (docs/network.md).

    `load`: flits per cycle and terminal, as numbers or as text (`_parse_loads`). The same arguments give the same points. Raises ConfigError for a
    network or traffic that cannot run, SimulationError on a deadlock; the message names the cycle of virtual channels that wait for each other.
    """
    chosen = _network_setting(**{name: request[name] for name in SettingArgs.__annotations__})  # type: ignore[literal-required]
    seed, period, warm_up, progress = request["seed"], request["period"], request["warm_up"], request["progress"]
    most_periods = request["max_periods"]
    protocol = Protocol(period, warm_up, warm_up + 4 if most_periods is None else most_periods)
    loads = _parse_loads(load if isinstance(load, str) else ",".join(str(x) for x in ([load] if isinstance(load, int | float) else load)))
    _check_runs(chosen, loads, seed)
    _compile(progress)
    done: dict[float, NetworkPoint] = {}
    total = len(loads)

    def point(one_load: float) -> NetworkPoint:
        if one_load not in done:
            done[one_load] = _measured(chosen, one_load, seed, protocol, len(done) + 1, max(total, len(done) + 1), progress)
        return done[one_load]

    for one_load in loads:
        point(one_load)
    edge = None
    if request["saturation"]:
        total += round(math.log2(1 / STEP)) + 1
        edge = _saturation(point, done)
    return NetworkCurve(chosen, protocol, seed, tuple(done[one_load] for one_load in sorted(done)), edge)


def _check_runs(setting: _Setting, loads: Sequence[float], seed: int) -> None:
    """Raise ConfigError for traffic that the network cannot take: before anything runs."""
    Draws(setting.config, setting.traffic, loads[0], seed)
    for load in loads:
        packet_rate(setting.traffic, load)


def _compile(progress: Progress | None) -> None:
    """Compile before the first point, so that the speed of that point leaves compilation out."""
    with on_compile(partial(telling(progress, "network"), "compiling")):
        measure(NetworkConfig("fly", 2), Traffic(), 0.1, protocol=Protocol(10))


def _measured(setting: _Setting, load: float, seed: int, protocol: Protocol, index: int, count: int, progress: Progress | None) -> NetworkPoint:
    tell = telling(progress, f"load {load:g}", index, count)
    return measure(setting.config, setting.traffic, load, seed, protocol, partial(tell, "measuring"))


def _saturation(point: Callable[[float], NetworkPoint], done: dict[float, NetworkPoint]) -> Amounts:
    """Bisection between the largest load carried and the smallest not carried; the largest accepted rate of all points measured."""
    low, high = 0.0, 1.0
    if point(1.0).saturated:
        high = min(load for load, p in done.items() if p.saturated)
        low = max((load for load, p in done.items() if not p.saturated and load < high), default=0.0)
        while high - low > STEP:
            middle = (low + high) / 2
            if point(middle).saturated:
                high = middle
            else:
                low = middle
    else:
        low = 1.0
    best = max(done.values(), key=lambda p: p.accepted)
    return {"load": low, "saturated_at": high, "accepted": best.accepted, "accepted_at": best.load}


@frozen
class CurveComparison:
    """Simulated and recorded curves: every row, one line per curve, and whether all bars hold."""

    rows: tuple[CurveRow, ...]
    errors: tuple[CurveError, ...]

    @property
    def holds(self) -> bool:
        """All curves are within the bars."""
        return all(e.holds for e in self.errors)

    def __str__(self) -> str:
        n = sum(e.holds for e in self.errors)
        return f"{n} of {len(self.errors)} curves within the bars, {sum(e.n_rows for e in self.errors)} rows compared"

    def __repr__(self) -> str:
        return f"<CurveComparison: {self}; to_dict() shows all>"

    def to_dict(self) -> ByName:
        """Plain values; None where nothing is compared."""
        bars = {"mean_error": MEAN_ERROR, "worst_error": POINT_ERROR, "rate_error": RATE_ERROR}
        curves, rows = ([_numbers(asdict(one)) for one in lines] for lines in (self.errors, self.rows))
        return {"bars": bars, "curves": curves, "rows": rows, "holds": self.holds}


@checked
def compare_network(
    csv: str | None = None, curve: str | None = None, *, every: int = 1, seeds: int = 0, progress: Progress | None = None
) -> CurveComparison:
    """Compare recorded curves with simulated ones.

    `csv`: a file of curves; None: the packaged curves. `curve`: name or pattern of the curves to compare; None: all.

    `every`: only every n-th row of a curve and its last row. `seeds`: 0 = the simulation sends the packets of the recorded runs; else the mean of
    up to `seeds` runs with drawn packets. Raises ConfigError for a file that is no table of curves, and for a name that the table does not have.
    """
    if every < 1 or seeds < 0:
        raise ConfigError(f"compare_network: found every={every} and seeds={seeds}, expected every at least 1 and seeds at least 0")
    known = list(read_curves(csv))
    names = [name for name in known if curve is None or fnmatch.fnmatchcase(name, curve)]
    if not names:
        raise ConfigError(f"curve: found {str(curve)[:60]!r}{nearest(str(curve), known)}")
    _compile(progress)
    tell, drawn = telling(progress, "recorded curves"), range(1, seeds + 1) if seeds else None
    rows = compare_curves(csv, only=lambda name: name in names, every=every, seeds=drawn, progress=partial(tell, "row"))
    return CurveComparison(tuple(rows), tuple(curve_errors(rows)))
