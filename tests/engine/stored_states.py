"""Regression values of engines' arrays at time zero.

Programs lowered for the burst and the packet level, networks of flits with their wiring and packets, and the recorded streams of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dysharp.base.errors import ConfigError, SimulationError
from dysharp.engine.blocks import columns as col
from dysharp.engine.burst.lower import _unsupported, beyond_packets, lower
from dysharp.engine.burst.run import deadlock_text, table_reads
from dysharp.engine.flit import columns as u
from dysharp.engine.flit import curves
from dysharp.engine.flit.config import NetworkConfig, RouterConfig, Traffic
from dysharp.engine.flit.curves import read_curves
from dysharp.engine.flit.network import Protocol, measure
from dysharp.engine.flit.recorded import _Stream, replay
from dysharp.engine.flit.state import build as build_network
from dysharp.engine.flit.state import check_drained, settled
from dysharp.engine.flit.topology import wire
from dysharp.engine.flit.traffic import Draws, packet_rate, targets
from dysharp.engine.packet.fabric import FabricConfig, build, fabric_of, with_table
from dysharp.engine.packet.program import _statistics_of
from dysharp.program.tables import Program
from dysharp.specs import load_cluster
from tests.interpreters.random_loads import random_loads
from tests.interpreters.random_merges import random_merge
from tests.interpreters.random_programs import random_program
from tests.interpreters.random_sums import random_sums
from tests.interpreters.varied_programs import varied_programs
from tests.stored_values import Cases, Table, arrays_of, digest, parts_of

STORED = Table(__file__)
READ = (curves._setting, curves._recorded)
RECORDED = ("injected_flits_per_cycle_node", "accepted_flits_per_cycle_node", "packet_latency_avg", "network_latency_avg")
OURS = ("injected", "accepted", "packet_latency", "network_latency")
Columns = dict[str, Any]
FABRICS = (
    FabricConfig(),
    FabricConfig(2, 3, "even", "class", 700, 5, 9000, 7, 3, 4, 600, 800, 6, 31_000, 9, 5, 40, "first"),
    FabricConfig(1, 1, "hash", "one", 0, 0, 0, 0, 0, 1, 500, 900, 0, 0, 0, 3, 17, "turns"),
)


def arrays(value: Any) -> Columns:
    """A digest of the arrays of each table."""
    held: dict[str, list[str]] = {}
    for name, entry in arrays_of(value):
        held.setdefault(name.partition(".")[0], []).append(digest(entry))
    return {name: digest(found) for name, found in held.items()}


def lowered(program: Program) -> Columns:
    """A Program for the burst level. Room that nothing fills is zero."""
    reasons = [_unsupported(program) or "", beyond_packets(program) or ""]
    if reasons[0]:
        return {"reasons": reasons}
    with patch.object(np, "empty", np.zeros):
        state = lower(program)
    reads = table_reads(program, state)
    stuck = [deadlock_text(program, state)]
    state.ops.ot[: program.n_ops, col.READY] = 0
    stuck.append(deadlock_text(program, state))
    state.ops.ot[: program.n_ops, col.ISSUE] = 0
    stuck.append(deadlock_text(program, state))
    state.ops.ot[: program.n_ops, [col.READY, col.ISSUE]] = -1
    return arrays(state) | {"reasons": reasons, "reads": [reads.rows, reads.reads], "stuck": digest(stuck)}


def refused(program: Program, config: FabricConfig) -> str:
    """Why the packet level does not take it; "" if it does."""
    try:
        build(program, config, 64)
    except ConfigError as error:
        return str(error)
    return ""


def packed(program: Program) -> Columns:
    """A Program for the packet level, with several fabrics."""
    out: Columns = {}
    for i, given in enumerate(FABRICS):
        config = given if program.sessions is None else replace(given, stripe="hash")
        if program.sessions is not None:
            out[f"links {i}"] = refused(program, given)
        with patch.object(np, "empty", np.zeros):
            state, fabric = build(program, config, 64)
        out |= {f"{name} {i}": found for name, found in (arrays(state) | arrays(fabric)).items()}
        out[f"table {i}"] = list(asdict(with_table(program, config)).values())
        if not i:
            out |= {f"no {name}": digest(value) for name, value in _statistics_of(program, state, fabric).items()}
    return out


PACKET_PROGRAMS: dict[str, Callable[[], Program]] = {
    "program 2": partial(random_program, 2), "program 3": partial(random_program, 3), "sums 1": partial(random_sums, 1, packets=True),
    "loads 2": partial(random_loads, 2, packets=True), "loads 5": partial(random_loads, 5, packets=True),
    "merge 3": partial(random_merge, 3, packets=True),
}  # fmt: skip
"""Programs that the packet level runs."""


def networks() -> dict[str, NetworkConfig]:
    """Every topology, and routers away from every default."""
    deep = RouterConfig(3, 5, "islip", "islip", 2, 3, 2, False, 1, 2, 3, 2, 4)
    held = RouterConfig(num_vcs=2, vc_buf_size=9, hold_switch=True, internal_speedup=3, output_speedup=2)
    return {
        "crossbar": NetworkConfig("fly", 6, 1), "fly": NetworkConfig("fly", 3, 3, deep, 2, 5), "small tree": NetworkConfig("fattree", 4, 1),
        "tree": NetworkConfig("fattree", 4, 2, replace(deep, speculative=True, vc_alloc_delay=1, sw_alloc_delay=1), 3, 2),
        "high tree": NetworkConfig("fattree", 2, 4, held), "ring": NetworkConfig("ring", 5, 1, RouterConfig(2, 3), 4, 7),
    }  # fmt: skip


def network_values(config: NetworkConfig) -> Columns:
    """Wiring and state of a network, and its packets under several kinds of traffic."""
    n = config.n_terminals
    out: Columns = {name: digest(value) for name, value in asdict(wire(config)).items()}
    kinds = {
        "uniform": Traffic("uniform", 3), "hot": Traffic("hotspot", 2, weights=(5.0, 0.0, 2.5)), "tornado": Traffic("tornado", 4),
        "given": Traffic("permutation", 1, targets=tuple(range(n - 1, -1, -1))), "bursty": Traffic("neighbor", 2, burst=(20.0, 30.0)),
    }  # fmt: skip
    for name, traffic in kinds.items():
        draws = Draws(config, traffic, 0.3, 7)
        out[name] = [digest(list(draws.chunk(begin, 90))) for begin in (0, 90)] + [packet_rate(traffic, 0.3)]
    with patch.object(np, "empty", np.zeros):
        return out | arrays(build_network(config, kinds["uniform"]))


def leftovers() -> Columns:
    """What a network says that is not empty at the end: each array with one wrong entry."""
    config = NetworkConfig("fly", 3, 1, RouterConfig(2, 3))
    places = {
        "held": (("inputs", "vcs"), (3, u.OCC)), "state": (("inputs", "vcs"), (5, u.STATE)), "credit": (("outputs", "vcs"), (4, u.CREDIT)),
        "owner": (("outputs", "vcs"), (1, u.OWNER)), "source": (("sources", "credit"), (3,)), "lane": (("inputs", "lane_vcs"), (1, 2)),
        "waits": (("outputs", "wait_vcs"), (2, 1)), "free": (("outputs", "ports"), (2, u.OUT_FREE)), "network": (("run",), (u.RUN_IN_NET,)),
        "listed": (("run",), (u.RUN_LISTED,)), "queue": (("outputs", "ports"), (1, u.OUT_LEN)), "credits": (("inputs", "ports"), (1, u.IN_LEN)),
        "flits": (("wheels", "flit_n"), (1,)), "sinks": (("wheels", "sink_n"), (0,)), "timers": (("wheels", "timer_n"), (0,)),
    }  # fmt: skip
    out: Columns = {}
    for name, (path, index) in places.items():
        state = build_network(config, Traffic())
        check_drained(state, config)
        array = getattr(state, path[0]) if len(path) == 1 else getattr(getattr(state, path[0]), path[1])
        array[index] += 1
        with pytest.raises(SimulationError) as error:
            check_drained(state, config)
        out[name] = [str(error.value), settled(state)]
    return out


def run_values() -> Columns:
    """Short runs with own packets and with recorded ones: every column but the times."""
    short = Protocol(period=60, warmup_periods=1, max_periods=4, stuck_cycles=300)
    asked = (
        (NetworkConfig("fly", 4, 1), Traffic("uniform", 2), 0.3, 5),
        (NetworkConfig("fattree", 2, 2), Traffic("hotspot", 3, weights=(4.0, 2.0)), 0.4, 6),
        (NetworkConfig("fly", 5, 1), Traffic("tornado", 1), 0.6, 7), (NetworkConfig("fly", 2, 2), Traffic("bitcomp", 4), 0.9, 3),
    )  # fmt: skip
    points = {f"{run.__name__} {i}": run(*one, short) for i, one in enumerate(asked) for run in (measure, replay)}
    return {name: [value for key, value in asdict(point).items() if key not in ("wall_s", "kernel_s")] for name, point in points.items()}


def pattern_values() -> Columns:
    """Who sends to whom, for numbers of terminals that a pattern takes."""
    out: Columns = {}
    for pattern, sizes in {
        "transpose": (4, 16),
        "bitcomp": (8, 16),
        "bitrev": (2, 8, 16),
        "shuffle": (2, 8, 16),
        "tornado": (5, 8),
        "neighbor": (5,),
    }.items():
        for n in sizes:
            found = targets(Traffic(pattern), n)
            out[f"{pattern} {n}"] = None if found is None else " ".join(map(str, found))
    return out


def stream_values() -> Columns:
    """The recorded generators: a few seeds, first numbers and numbers past several batches."""
    return {
        f"{seed} {fractions}": [float(x) for x in numbers[[0, 1, 2]]] + [float(numbers[99:101].sum()), float(numbers.sum())]
        for seed in (0, 1, 12345, (1 << 30) - 1) for fractions in (False, True) for numbers in [_Stream(seed, fractions=fractions).first(350)]
    }  # fmt: skip


def curve_values() -> Columns:
    """The settings of the first and last row of every packaged curve, and comparisons with points that are a little off."""
    base = measure(NetworkConfig("fly", 2, 1), Traffic(), 0.3, 1, Protocol(period=20, warmup_periods=1, max_periods=3))
    out: Columns = {}
    compared = []
    for k, (name, found) in enumerate(read_curves().items()):
        settings = [[part if isinstance(part, (int, float)) else asdict(part) for part in of(row)] for row in (found[0], found[-1]) for of in READ]
        picked = curves._sample(found, 3)
        for row in picked:
            recorded = [float(row[column]) for column in RECORDED]
            ours: list[Columns] = [{column: x * off for column, x in zip(OURS, recorded, strict=True)} for off in (1 + k / 500, 1.01)]
            points = [replace(base, **values) for values in ours[: 1 + k % 2]]
            compared.append(curves._compare(found, row, points))
        judged = [
            [x for x in list(asdict(row).values())[1:] if isinstance(x, (int, float)) and not math.isnan(x)] for row in compared[-len(picked) :]
        ]
        out |= {name: [digest(settings), len(picked)], f"{name}, compared": judged}
    errors = curves.curve_errors(compared)
    out |= {f"{error.curve}, errors": list(asdict(error).values())[1:] for error in errors} | {"table": digest(curves.error_table(errors))}
    some = [replace(base, accepted=0.5 + i / 400, packet_latency=20 + i / 10) for i in range(4)]
    return out | {"precise": [curves._precise(some[:n], p, past) for n in (1, 2, 4) for p in (0.0015, 0.0025, 0.006, 0.02) for past in (False, True)]}


CASES: Cases = {
    **{f"burst, {name}": (lambda make=make: lowered(make())) for name, make in varied_programs().items()},  # type: ignore[misc]
    **{f"packet, {name}": (lambda make=make: packed(make())) for name, make in PACKET_PROGRAMS.items()},  # type: ignore[misc]
    **{f"packet, {name}": (lambda name=name: asdict(fabric_of(load_cluster(name)))) for name in ("paper-gh200-nvl32", "hw-dgx-h100")},  # type: ignore[misc]
    **{f"flit, {name}": (lambda name=name: network_values(networks()[name])) for name in networks()},  # type: ignore[misc]
    "flit, leftovers": leftovers, "flit, runs": run_values, "flit, patterns": pattern_values, "flit, streams": stream_values,
    "flit, curves": curve_values,
    "flit, defaults": lambda: {"network": asdict(NetworkConfig()), "traffic": asdict(Traffic()), "protocol": asdict(Protocol())},
}  # fmt: skip
KINDS = (*(f"random_{kind}" for kind in ("program", "bulk", "sums", "loads", "merge", "shares")), "crowded", "points")
PARTS = parts_of(CASES, *(f"burst, {kind}" for kind in KINDS), "packet", "flit")
