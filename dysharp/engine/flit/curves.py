"""Comparison with recorded curves of an established router simulator, row by row and curve by curve.

A reference row fixes network, traffic and load, and the recorded run was one random run. Our network sends the packets of the recorded run
(`replay`), or its own packets at the load that the recorded run injected (with a hot terminal, at its recorded share): then the difference of single
runs is in the comparison. Latency counts up to 90 % of saturation, the accepted rate beyond. Rows that say
nothing about a port are left out, with the reason.
"""

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dysharp.base import F64, ConfigError, OnProgress, by_key, frozen, read_text
from dysharp.engine.flit.network import NetworkConfig, NetworkPoint, Protocol, RouterConfig, Traffic, measure
from dysharp.engine.flit.recorded import replay

RECORDED = Path(__file__).with_name("router_curves.csv.gz")
PACKAGED = "packaged curves"
"""The name of the packaged table in errors."""
LATENCY_UP_TO = 0.9  # of the saturation rate
MEAN_ERROR, POINT_ERROR, RATE_ERROR = 0.03, 0.06, 0.02  # bars: latency per curve, latency of a point, largest accepted rate

DIGITS = 5e-6  # rates and latencies were recorded in six digits
# Up to this load these curves were measured for up to ten periods instead of seven, as their recorded cycles say.
LONG_RUNS = {"xbar8_v4b8_p1": 1.0, "xbar8_v4b8_p9": 1.0, "xbar16_v4b8_p1": 0.85}

FILLING, STEEP = "deep ports are still filling past saturation", "latency above 90 % of saturation; its rate counts"

Row = dict[str, str]


@frozen
class CurveRow:
    """One load of one curve: reference, ours and the relative errors (NaN where a column is not compared; `left_out` says why).

    `same`: rates injected and accepted, packet and network latency are the recorded ones in all their digits, left out or not.
    """

    curve: str
    load: float
    injected: float
    reference_injected: float
    latency: float
    reference_latency: float
    latency_error: float
    accepted: float
    reference_accepted: float
    accepted_error: float
    network_error: float
    n_runs: int
    left_out: str
    same: bool


@frozen
class CurveError:
    """One curve: mean, largest and signed mean latency error, error of the largest accepted rate, and whether the errors with a bar are within it.

    `network_error`: mean error of the network latency past saturation, where packet latency only says how long the run was (no bar).
    """

    curve: str
    n_latency: int
    mean_error: float
    worst_error: float
    bias: float
    rate: float
    reference_rate: float
    rate_error: float
    network_error: float
    n_rows: int
    n_same: int
    holds: bool


def read_curves(path: str | Path | None = None) -> dict[str, list[Row]]:
    """Rows of a reference file (None: the packaged one) by curve, in file order. Raises ConfigError for a file that is no table of curves."""
    try:
        text = gzip.decompress(RECORDED.read_bytes()).decode("utf-8") if path is None else read_text(Path(path))
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as e:
        raise ConfigError(f"{path}: cannot read the curves: {e}") from None
    for number, row in enumerate(rows, 2):
        if row.get("curve") is None or row.get("offered_flits_per_cycle_node") is None:
            raise ConfigError(f"{path}, line {number}: expected the columns curve and offered_flits_per_cycle_node")
    if not rows:
        raise ConfigError(f"{path}: found no rows, expected curves")
    return by_key((row["curve"], row) for row in rows)


def _setting(row: Row) -> tuple[NetworkConfig, Traffic, Protocol, float]:
    """Network, traffic, protocol and load of a reference row. Raises ConfigError for networks that are not built."""
    whole = {name: int(row[name]) for name in ("k", "n", "num_vcs", "vc_buf_size", "packet_size", "link_delay", "sample_period")}
    router = RouterConfig(
        num_vcs=whole["num_vcs"], vc_buf_size=whole["vc_buf_size"], vc_allocator=row["vc_allocator"], sw_allocator=row["sw_allocator"],
        internal_speedup=int(row["internal_speedup"]), input_speedup=int(row["input_speedup"]),
        output_speedup=int(row["output_speedup"]), speculative=row["speculative"] == "1", routing_delay=int(row["routing_delay"]),
        vc_alloc_delay=int(row["vc_alloc_delay"]), sw_alloc_delay=int(row["sw_alloc_delay"]),
        traversal_delay=int(row["st_prepare_delay"]) + int(row["st_final_delay"]), credit_delay=int(row["credit_delay"]),
    )  # fmt: skip
    network = NetworkConfig(row["topology"], whole["k"], whole["n"], router, terminal_delay=whole["link_delay"])
    if not row["traffic"].startswith("hot"):
        traffic = Traffic(row["traffic"], whole["packet_size"])
    else:
        # The few hundred packets of a recorded hot terminal miss its nominal share by up to 7 %, its latency by far more.
        share = float(row["accepted_max_node"]) / float(row["accepted_flits_per_cycle_node"]) / network.n_terminals
        traffic = Traffic("hotspot", whole["packet_size"], weights=(share / (1 - share) * (network.n_terminals - 1),))
    load = float(row["offered_flits_per_cycle_node" if row["saturated"] == "1" else "injected_flits_per_cycle_node"])
    period = whole["sample_period"]
    long = float(row["offered_flits_per_cycle_node"]) <= LONG_RUNS.get(row["curve"], 0.0)
    return network, traffic, Protocol(period, max_periods=10 if long else 7), load


def _column(rows: Sequence[Row], name: str) -> F64:
    return np.array([float(r[name]) for r in rows])


def _left_out(row: Row, saturation: float) -> str:
    """Parts of this row that are not compared, by the notes of the recording; empty if its latency is compared or the row is past saturation."""
    saturated = row["saturated"] == "1"
    if saturated and int(row["num_vcs"]) >= 16:
        return FILLING
    if not saturated and float(row["injected_flits_per_cycle_node"]) > LATENCY_UP_TO * saturation:
        return STEEP
    return ""


def compare_curves(
    path: str | Path | None = None, only: Callable[[str], bool] | None = None, every: int = 1, seeds: Sequence[int] | None = None,
    precision: float = 0.01, progress: OnProgress | None = None, at: float | None = None,
) -> list[CurveRow]:  # fmt: skip
    """Measure rows of the curves in `path` (curves that `only` accepts; every n-th row and the last) and compare them with the recorded rows.

    `path`: None for the packaged curves.
    `at`: only the rows of this offered load.

    Without `seeds` our network sends the packets of the recorded runs. Otherwise our value is the mean over `seeds`, which run one by
    one (at least two, if there are two) until the standard error is below `precision` of the latency, or past saturation below a quarter
    of `precision` of the accepted rate. Raises ConfigError for a file that is no table of curves.
    """
    work = [(rows, row) for name, rows in read_curves(path).items() if only is None or only(name) for row in _sample(rows, every)]
    work = [(rows, row) for rows, row in work if at is None or float(row["offered_flits_per_cycle_node"]) == at]
    result = []
    for i, (rows, row) in enumerate(work):
        if progress:
            progress(i, len(work))
        try:
            points = [replay(*_recorded(row))] if seeds is None else _drawn(row, seeds, precision)
            result.append(_compare(rows, row, points))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as e:
            raise ConfigError(f"{path or PACKAGED}: curve {row['curve']}: a column is missing or is no number: {e!r}") from None
    return result


def _recorded(row: Row) -> tuple[NetworkConfig, Traffic, float, int, Protocol]:
    """Arguments of `replay` for a row: the load that was offered, and the nominal weight of a hot terminal (`hotW`)."""
    network, traffic, protocol, _ = _setting(row)
    if traffic.pattern == "hotspot":
        traffic = Traffic("hotspot", traffic.packet_flits, weights=(float(row["traffic"].removeprefix("hot")),))
    return network, traffic, float(row["offered_flits_per_cycle_node"]), int(row["seed"]), protocol


def _drawn(row: Row, seeds: Sequence[int], precision: float) -> list[NetworkPoint]:
    network, traffic, protocol, load = _setting(row)
    points: list[NetworkPoint] = []
    for seed in seeds:
        points.append(measure(network, traffic, load, seed, protocol))
        if _precise(points, precision, row["saturated"] == "1"):
            break
    return points


def _precise(points: Sequence[NetworkPoint], precision: float, saturated: bool) -> bool:
    if len(points) < 2:
        return False
    values = np.array([p.accepted if saturated else p.packet_latency for p in points])
    error = float(values.std(ddof=1) / np.sqrt(len(values)) / values.mean())
    return error < (precision / 4 if saturated else precision)


def _sample(rows: list[Row], every: int) -> list[Row]:
    return [r for i, r in enumerate(rows) if i % every == 0 or i == len(rows) - 1]


def _compare(rows: Sequence[Row], row: Row, points: Sequence[NetworkPoint]) -> CurveRow:
    saturation = float(_column(rows, "accepted_flits_per_cycle_node").max())
    injected = float(np.mean([p.injected for p in points]))
    latency = float(np.mean([p.packet_latency for p in points]))
    accepted = float(np.mean([p.accepted for p in points]))
    reference_injected, reference_accepted = float(row["injected_flits_per_cycle_node"]), float(row["accepted_flits_per_cycle_node"])
    calm = [r for r in rows if r["saturated"] == "0"]
    reference = float(row["packet_latency_avg"])
    left_out = _left_out(row, saturation)
    latency_error = network_error = float("nan")
    if row["saturated"] == "1" and not left_out:
        network_error = float(np.mean([p.network_latency for p in points])) / float(row["network_latency_avg"]) - 1
    elif not left_out:
        # our draws still inject a little more or less: along the recorded curve, whose reciprocal is nearly straight
        here = np.interp([injected, reference_injected], _column(calm, "injected_flits_per_cycle_node"), 1 / _column(calm, "packet_latency_avg"))
        reference = reference * float(here[1] / here[0])
        latency_error = latency / reference - 1
    return CurveRow(
        row["curve"], float(row["offered_flits_per_cycle_node"]), injected, reference_injected, latency, reference, latency_error,
        accepted, reference_accepted, accepted / reference_accepted - 1, network_error, len(points), left_out, _same(row, points),
    )  # fmt: skip


def _same(row: Row, points: Sequence[NetworkPoint]) -> bool:
    """Equal in the six digits that were recorded."""
    columns = {
        "injected_flits_per_cycle_node": "injected", "accepted_flits_per_cycle_node": "accepted", "packet_latency_avg": "packet_latency",
        "network_latency_avg": "network_latency",
    }  # fmt: skip
    return all(abs(getattr(p, ours) / float(row[name]) - 1) < DIGITS for p in points for name, ours in columns.items())


def curve_errors(rows: Sequence[CurveRow]) -> list[CurveError]:
    """One line per curve. The largest accepted rate is taken over the measured rows, without rows left out past saturation."""
    result = []
    for name in dict.fromkeys(r.curve for r in rows):
        mine = [r for r in rows if r.curve == name]
        errors, network = (_known([getattr(r, column) for r in mine]) for column in ("latency_error", "network_error"))
        rated = [r for r in mine if r.left_out != FILLING]
        rate, reference_rate = max(r.accepted for r in rated), max(r.reference_accepted for r in rated)
        mean, worst, rate_error = float(np.abs(errors).mean()), float(np.abs(errors).max()), rate / reference_rate - 1
        holds = mean <= MEAN_ERROR and worst <= POINT_ERROR and abs(rate_error) <= RATE_ERROR
        past = float(np.abs(network).mean())
        same = sum(r.same for r in mine)
        error = CurveError(name, len(errors), mean, worst, float(errors.mean()), rate, reference_rate, rate_error, past, len(mine), same, holds)
        result.append(error)
    return result


def _known(values: Sequence[float]) -> F64:
    """The values that are numbers; zero if there are none."""
    known = np.array([v for v in values if not np.isnan(v)])
    return known if len(known) else np.zeros(1)


def error_table(errors: Sequence[CurveError]) -> str:
    """The table people read: percent, one curve a line."""
    head = f"{'curve':29} {'points':>6} {'mean %':>7} {'worst %':>8} {'bias %':>7} {'rate':>7} {'ref.':>7} {'rate %':>7} {'netw. %':>8} {'same':>6}"
    lines = [
        f"{e.curve:29} {e.n_latency:6d} {100 * e.mean_error:7.2f} {100 * e.worst_error:8.2f} {100 * e.bias:+7.2f} {e.rate:7.4f} "
        f"{e.reference_rate:7.4f} {100 * e.rate_error:+7.2f} {100 * e.network_error:8.2f} {f'{e.n_same}/{e.n_rows}':>6}"
        + ("" if e.holds else "  MISSES")
        for e in errors
    ]
    return "\n".join([head, *lines])
