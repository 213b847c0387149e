"""`network`: latency against load of one switch or network, flit by flit."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dysharp.api.network_setting import Setting, network_setting, parse_loads
from dysharp.engine.flit.config import NetworkConfig, Traffic
from dysharp.engine.flit.curves import MEAN_ERROR, POINT_ERROR, RATE_ERROR, CurveError, CurveRow, compare_curves, curve_errors, read_curves
from dysharp.engine.flit.network import NetworkPoint, Protocol, measure
from dysharp.engine.flit.traffic import Draws, packet_rate
from dysharp.errors import ConfigError, nearest
from dysharp.runs.progress import Progress, Step
from dysharp.specs.arguments import checked
from dysharp.text import table
from dysharp.uarch.compiling import on_compile

LOADS = "0.1:0.9:0.1"
MAX_PERIOD, MAX_WARM_UP = 1_000_000, 10_000  # the packets of a period are drawn at once: 1e6 cycles take about 0.1 GB
STEP = 1 / 128  # width at which the search for saturation ends


@dataclass(frozen=True, slots=True)
class NetworkCurve:
    """Points of one network, by load. `saturation`: result of the search, {load, accepted, saturated_at, accepted_at}, or None."""

    setting: Setting
    protocol: Protocol
    seed: int
    points: tuple[NetworkPoint, ...]
    saturation: dict[str, float] | None

    @property
    def flits_per_s(self) -> float:
        """Flits delivered per second of the cycle loop, over all points."""
        seconds = sum(p.kernel_s for p in self.points)
        return sum(p.n_flits for p in self.points) / seconds if seconds else 0.0

    @property
    def notes(self) -> list[str]:
        """Lines about unexpected behaviour of this network."""
        c, flits = self.setting.config, self.setting.traffic.packet_flits
        size = c.router.vc_buf_size
        if flits <= size:
            return []
        loop = 2 * max(c.terminal_delay, c.link_delay) + 2 + c.router.credit_delay
        return [f"note: a packet is longer than a virtual channel ({size} flits); the rest of its flits waits for credits, which take {loop} cycles"]

    def __str__(self) -> str:
        """One line per load."""
        rows = [(f"{p.load:.4g}", f"{p.accepted:.4f}", f"{p.packet_latency:.2f}", "saturated" if p.saturated else "") for p in self.points]
        return table(("load", "accepted", "latency, cycles", ""), rows, left=0)

    def __repr__(self) -> str:
        return f"<NetworkCurve of {self.setting.name}, {len(self.points)} loads; print() shows the table, to_dict() all>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a latency without a measured packet is None."""
        return {
            "network": self.setting.name, "config": asdict(self.setting.config) | {"terminals": self.setting.config.n_terminals},
            "traffic": asdict(self.setting.traffic), "cycle_ps": self.setting.cycle_ps or None, "protocol": asdict(self.protocol),
            "seed": self.seed, "points": [_plain(p, self.setting.cycle_ps) for p in self.points], "saturation": self.saturation,
            "notes": self.notes, "flits_per_s": self.flits_per_s,
        }  # fmt: skip


def _plain(p: NetworkPoint, cycle_ps: int) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(p, name) for name in ("load", "injected", "accepted", "accepted_min", "accepted_max")}
    for name, column in (("", "packet_latency"), ("network_", "network_latency"), ("flit_", "flit_latency")):
        mean = getattr(p, column)
        row[f"{name}latency_cycles"] = None if math.isnan(mean) else mean
        row[f"{name}latency_min_cycles"], row[f"{name}latency_max_cycles"] = getattr(p, f"{column}_min"), getattr(p, f"{column}_max")
    if cycle_ps:
        row["latency_ns"] = None if math.isnan(p.packet_latency) else p.packet_latency * cycle_ps / 1000
    row["hops"] = None if math.isnan(p.hops) else p.hops
    for name in ("saturated", "n_packets", "measured_cycles", "cycles", "n_flits", "digest", "wall_s"):
        row[name] = getattr(p, name)
    return row


@checked
def network(
    load: str | float | Iterable[float] = LOADS, *, saturation: bool = False, seed: int = 1, period: int = 6000, warm_up: int = 3,
    max_periods: int | None = None, progress: Progress | None = None, **setting: Any,
) -> NetworkCurve:  # fmt: skip
    """Latency against load of one network, flit by flit: virtual channels, credits, allocators (docs/network.md).

    load         flits per cycle and terminal, as numbers or as text (`parse_loads`)
    saturation   also find the largest load that the network carries, by bisection
    period       cycles of a sample period
    warm_up      periods to discard
    max_periods  periods to simulate at most, `warm_up` included. None: `warm_up` + 4
    setting      the network and its traffic: arguments of `network_setting`

    The same arguments give the same points. Raises ConfigError for a network or traffic that cannot run, SimulationError on a deadlock; the
    message names the cycle of virtual channels that wait for each other.
    """
    chosen = network_setting(**setting)
    for name, value, most in (("period", period, MAX_PERIOD), ("warm-up", warm_up, MAX_WARM_UP)):  # before the engine takes memory for them
        if not 1 <= value <= most:
            raise ConfigError(f"network: {name}: found {value}, expected 1 to {most}")
    protocol = Protocol(period, warm_up, warm_up + 4 if max_periods is None else max_periods)
    loads = parse_loads(load if isinstance(load, str) else ",".join(str(x) for x in ([load] if isinstance(load, int | float) else load)))
    check_runs(chosen, loads, seed)
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
    if saturation:
        total += round(math.log2(1 / STEP)) + 1
        edge = _saturation(point, done)
    return NetworkCurve(chosen, protocol, seed, tuple(done[one_load] for one_load in sorted(done)), edge)


def check_runs(setting: Setting, loads: Sequence[float], seed: int) -> None:
    """Raise ConfigError for traffic that the network cannot take: before anything runs."""
    Draws(setting.config, setting.traffic, loads[0], seed)
    for load in loads:
        packet_rate(setting.traffic, load)


def _compile(progress: Progress | None) -> None:
    """Compile before the first point, so that the speed of that point leaves compilation out."""
    with on_compile(lambda compiled: progress(Step("network", 1, 1, "compiling", compiled)) if progress else None):
        measure(NetworkConfig("fly", 2), Traffic(), 0.1, protocol=Protocol(10))


def _measured(setting: Setting, load: float, seed: int, protocol: Protocol, index: int, count: int, progress: Progress | None) -> NetworkPoint:
    def on_progress(done: int, total: int) -> None:
        if progress:
            progress(Step(f"load {load:g}", index, count, "measuring", done, total))

    return measure(setting.config, setting.traffic, load, seed, protocol, on_progress)


def _saturation(point: Callable[[float], NetworkPoint], done: dict[float, NetworkPoint]) -> dict[str, float]:
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


@dataclass(frozen=True, slots=True)
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where nothing is compared."""

        def plain(value: Any) -> dict[str, Any]:
            return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(value).items()}

        bars = {"mean_error": MEAN_ERROR, "worst_error": POINT_ERROR, "rate_error": RATE_ERROR}
        return {"bars": bars, "curves": [plain(e) for e in self.errors], "rows": [plain(r) for r in self.rows], "holds": self.holds}


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

    def on_progress(done: int, total: int) -> None:
        if progress:
            progress(Step("recorded curves", 1, 1, "row", done, total))

    _compile(progress)
    rows = compare_curves(csv, only=lambda name: name in names, every=every, seeds=range(1, seeds + 1) if seeds else None, progress=on_progress)
    return CurveComparison(tuple(rows), tuple(curve_errors(rows)))
