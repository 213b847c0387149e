"""Times and ratios of times of points; what moves over the links, and how busy they are."""

from dataclasses import replace

from dysharp.figures.metric import Seen, metric
from dysharp.systems import all_systems

metric("time_us", "layer time (us)")(lambda here: here.time_us)


@metric("speedup", "speed-up", compares=True)
def _speedup(here: Seen, other: Seen) -> float:
    return other.time_us / here.time_us


@metric("time_over", "time", compares=True)
def _time_over(here: Seen, other: Seen) -> float:
    return here.time_us / other.time_us


@metric("best_time_over", "time with the best options of the figure", compares=True)
def _best_time_over(here: Seen, other: Seen) -> float | None:
    """Time of the system divided by the time of `over`, at the system's fastest point on its workload."""
    return _time_over(here, other) if here.is_fastest else None


# Each end is of the GPU that finishes last.
metric("gemm1_speedup", "speedup to the end of GEMM-1", compares=True)(
    lambda here, other: other.phase_us("gemm1")["end"] / here.phase_us("gemm1")["end"]
)


@metric("over_software", "speedup over the fastest system of today")
def _over_software(here: Seen) -> float | None:
    """Time of the fastest system of today on the same workload divided by the time of the system.

    A system that drops choices does less work and does not count.
    """
    today = here.among(*(name for name, system in all_systems().items() if system.today))
    times = [seen.time_us for seen in today if not seen.row.get("dropped_rows")]
    return min(times) / here.time_us if times else None


@metric("gain_share", "share of the gain of dysharp", compares=True)
def _gain_share(here: Seen, other: Seen) -> float | None:
    """Time saved over `over`, divided by the time that DySHARP saves over it on the same workload."""
    best = next(iter(here.among("dysharp")), None)
    return (other.time_us - here.time_us) / (other.time_us - best.time_us) if best else None


@metric("kept", "kept", compares=True, against=True)
def _kept(here: Seen, other: Seen) -> float | None:
    """Speed-up over `over` divided by the speed-up under the routing `against`: the share of the gain that is kept."""
    there = here.at(replace(here.point, routing=str(here.against)))
    base = there.partner() if there else None
    return _speedup(here, other) / _speedup(there, base) if there and base else None


@metric("over_packet", "time at burst level over time at packet level")
def _over_packet(here: Seen) -> float | None:
    """Time at burst level divided by the time of the same system and workload at packet level, with the same options if a point has them."""
    if here.point.fidelity == "packet":
        return None
    same = replace(here, point=replace(here.point, fidelity="packet"))
    other = here.at(same.point) or next(iter(same.among(here.point.system)), None)
    return here.time_us / other.time_us if other else None


metric("comm_share", "exposed communication over layer time")(lambda here: here.row["exposed_comm_us"] / here.time_us)
# Lower bound of this Program divided by its time: 1 = the busiest resource never waits.
metric("bound_share", "bound_share")(lambda here: here.row["bound_us"] / here.time_us)


@metric("over_best", "over_best")
def _over_best(here: Seen) -> float | None:
    """Time of the point divided by the best time of the grid.

    A check without `options` takes the point with default options.
    """
    if (here.point.options or here.point.choices) and not here.options:
        return None
    return here.time_us / min(seen.time_us for seen in here.among(here.point.system))


BOTH = ("up", "down")


def _payload_bytes(here: Seen) -> float:
    """Payload of Dispatch and Combine, up and down, all GPUs."""
    return float(sum(here.row["traffic_bytes"][side][operator] for side in BOTH for operator in ("dispatch", "combine")))


metric("traffic_GB", "payload (GB)")(lambda here: _payload_bytes(here) / 1e9)


@metric("traffic_cut", "traffic_cut", compares=True)
def _traffic_cut(here: Seen, other: Seen) -> float | None:
    """Share of the payload of `over` that the system avoids."""
    moved = _payload_bytes(other)
    return 1.0 - _payload_bytes(here) / moved if moved else None  # "ideal" moves no payload


metric("up_use", "busy share of the up links")(lambda here: here.busy("up"))
metric("down_use", "busy share of the down links")(lambda here: here.busy("down"))
metric("link_use", "busy share of all links")(lambda here: here.busy(*BOTH))


@metric("use_ratio", "busy share of all links, ratio", compares=True)
def _use_ratio(here: Seen, other: Seen) -> float | None:
    """Mean busy share of all links, divided by that of the system `over`."""
    theirs = other.busy(*BOTH)
    return here.busy(*BOTH) / theirs if theirs else None  # "ideal" uses no link
