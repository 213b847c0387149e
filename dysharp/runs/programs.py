"""Programs of a request that are merged with others: planned as a run plans them, and timed on the burst engine."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dysharp.program import Program
from dysharp.runs.request import RequestArgs, make_request, takes
from dysharp.runs.run import prepare
from dysharp.systems import get_system
from dysharp.units import PS_PER_US


@takes(RequestArgs)
def planned(name: str, directions: Sequence[str], chosen: Mapping[str, Any] | None = None, **request: Unpack[RequestArgs]) -> list[Program]:
    """The Programs of a system on one drawn workload, one for each of `directions` ("fwd", "bwd").

    `chosen`: the options of a Row of the system; None: those of the request. Raises ConfigError as `compare`.
    """
    asked, system = make_request(request), get_system(name)
    usual, workload = prepare({name: system}, asked)
    options = usual[name] if chosen is None else type(usual[name])(**chosen)
    return [system.plan(asked.model, asked.cluster, workload.routing, direction, options) for direction in directions]


def program_us(program: Program) -> float:
    """The time of a Program in microseconds. Raises ProgramError for one that breaks a rule."""
    from dysharp.engine.burst.run import run_burst
    from dysharp.program.verify import verify

    verify(program)
    return run_burst(program)[0].time_ps / PS_PER_US
