"""Regression values of engines' arrays at time zero: `python -m tests.engine.stored_states` writes `states.json`.

Programs lowered for the burst and the packet level, networks of flits with their wiring and packets, and the recorded streams of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dysharp.engine.burst.lower import beyond_packets, lower, unsupported
from dysharp.engine.burst.run import deadlock_text, table_reads
from dysharp.engine.flit.config import NetworkConfig, RouterConfig, Traffic
from dysharp.engine.flit.curves import read_curves, setting
from dysharp.engine.flit.network import Protocol
from dysharp.engine.flit.recorded import Stream
from dysharp.engine.flit.state import build as build_network
from dysharp.engine.flit.topology import wire
from dysharp.engine.flit.traffic import Draws, packet_rate, targets
from dysharp.engine.packet.fabric import FabricConfig, build, fabric_of, with_table
from dysharp.engine.packet.program import statistics_of
from dysharp.errors import ConfigError
from dysharp.program.tables import Program
from dysharp.specs import load_cluster
from dysharp.uarch import columns as col
from tests.interpreters.random_loads import random_loads
from tests.interpreters.random_merges import random_merge
from tests.interpreters.random_programs import random_program
from tests.interpreters.random_sums import random_sums
from tests.interpreters.varied_programs import varied_programs
from tests.stored_values import arrays_of, digest, write

STORED = Path(__file__).with_name("states.json")
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
    reasons = [unsupported(program) or "", beyond_packets(program) or ""]
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
            out |= {f"no {name}": digest(value) for name, value in statistics_of(program, state, fabric).items()}
    return out


def packet_programs() -> dict[str, Program]:
    """Programs that the packet level runs."""
    return {
        "program 2": random_program(2), "program 3": random_program(3), "sums 1": random_sums(1, packets=True),
        "loads 2": random_loads(2, packets=True), "loads 5": random_loads(5, packets=True), "merge 3": random_merge(3, packets=True),
    }  # fmt: skip


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
        for seed in (0, 1, 12345, (1 << 30) - 1) for fractions in (False, True) for numbers in [Stream(seed, fractions=fractions).first(350)]
    }  # fmt: skip


def curve_values() -> Columns:
    """The setting of the first and last row of every packaged curve."""
    return {
        name: [digest([asdict(part) if not isinstance(part, float) else part for part in setting(row)]) for row in (rows[0], rows[-1])]
        for name, rows in read_curves().items()
    }


def rows(part: str = "") -> Iterator[tuple[str, Columns]]:
    """All rows whose names begin with `part`."""
    for name, make in varied_programs().items():
        if f"burst, {name}".startswith(part):
            yield f"burst, {name}", lowered(make())
    if "packet".startswith(part):
        for name, program in packet_programs().items():
            yield f"packet, {name}", packed(program)
        for cluster in ("paper-gh200-nvl32", "hw-dgx-h100"):
            yield f"packet, {cluster}", asdict(fabric_of(load_cluster(cluster)))
    if "flit".startswith(part):
        for name, config in networks().items():
            yield f"flit, {name}", network_values(config)
        yield "flit, patterns", pattern_values()
        yield "flit, streams", stream_values()
        yield "flit, curves", curve_values()
        yield "flit, defaults", {"network": asdict(NetworkConfig()), "traffic": asdict(Traffic()), "protocol": asdict(Protocol())}


if __name__ == "__main__":
    write(STORED, dict(rows()))
