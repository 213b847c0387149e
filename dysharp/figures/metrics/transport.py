"""What moves over the links, and how busy they are."""

from dysharp.figures.metric import Seen, metric

BOTH = ("up", "down")


def payload_bytes(here: Seen) -> float:
    """Payload of Dispatch and Combine, up and down, all GPUs."""
    return float(sum(here.row["traffic_bytes"][side][operator] for side in BOTH for operator in ("dispatch", "combine")))


@metric("traffic_GB", "payload (GB)")
def traffic_GB(here: Seen) -> float:
    """Payload of Dispatch and Combine, up and down, all GPUs, in GB (1e9 bytes)."""
    return payload_bytes(here) / 1e9


@metric("traffic_cut", "traffic_cut", compares=True)
def traffic_cut(here: Seen, other: Seen) -> float | None:
    """Share of the payload of `over` that the system avoids."""
    moved = payload_bytes(other)
    return 1.0 - payload_bytes(here) / moved if moved else None  # "ideal" moves no payload


metric("up_use", "busy share of the up links")(lambda here: here.busy("up"))
metric("down_use", "busy share of the down links")(lambda here: here.busy("down"))
metric("link_use", "busy share of all links")(lambda here: here.busy(*BOTH))


@metric("use_ratio", "busy share of all links, ratio", compares=True)
def use_ratio(here: Seen, other: Seen) -> float | None:
    """Mean busy share of all links, divided by that of the system `over`."""
    theirs = other.busy(*BOTH)
    return here.busy(*BOTH) / theirs if theirs else None  # "ideal" uses no link
