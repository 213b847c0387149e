"""How long a run at packet level takes on this computer, estimated before it begins."""

from collections.abc import Sequence
from typing import Any, Unpack

from dysharp.base import AnyMapping
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.options import options_by_system, options_of
from dysharp.runs.request import make_request, make_workload, takes
from dysharp.specs import PACKET_BYTES
from dysharp.systems import System, get_system
from dysharp.workload import Routing, traffic

PACKET_US, PACKET_US_PER_GPU = 1.2, 0.07
"""Wall time of one packet of payload on one link, fitted to ten runs of five systems on 4 to 72 GPUs: 0.9 to 6.5 us."""
OFF_BY = 2
"""The ten runs took between half and twice the estimate."""

PACKETS_OF_ROW = 4
"""Times that the packets of a row cross a link: up and down, in Dispatch and in Combine."""


@takes(RequestArgs)
def packet_time(systems: Sequence[str], **request: Unpack[RequestArgs]) -> str:
    """A line with the number of packets and the estimated time of running `systems` at packet level; "" at burst level.

    Raises ConfigError for wrong input.
    """
    if request["workload"] is not None:
        return ""
    asked = make_request({**request, "progress": None})
    if asked.fidelity != "packet":
        return ""
    chosen = {name: get_system(name) for name in systems}
    known = {key: value for key, value in asked.options.items() if "." not in key or key.partition(".")[0] in chosen}
    given = options_by_system(known, chosen, asked.model, asked.cluster)
    routing = make_workload(asked).routing
    share = 1.0 if asked.window is None else 2.5 * asked.window / asked.tokens  # 1/4, 1/2 and 3/4 of them run, too
    passes = 2 if asked.direction == "both" else 1
    one_pass = sum(_packets(system, options_of(system, given[name]), routing, asked.model.row_bytes) for name, system in chosen.items())
    return estimate_line(share * passes * one_pass, asked.cluster.n_gpus)


def estimate_line(packets: float, gpus: int) -> str:
    """The line of `packet_time` for a number of packets that cross a link."""
    seconds = packets * (PACKET_US + PACKET_US_PER_GPU * gpus) / 1e6
    return f"packet level: about {packets:.2g} packets on links, about {_duration(seconds)} (an estimate, right within a factor of {OFF_BY})"


def _packets(system: System, options: Any, routing: Routing, row_bytes: int) -> float:
    sent = traffic(routing, system.moves.sent, row_bytes, options)
    operators: AnyMapping = sent
    return float(sum(operator["up"] + operator["down"] for operator in operators.values())) / PACKET_BYTES


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
