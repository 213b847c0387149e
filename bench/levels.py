"""Burst level against packet level with the published tables: time of every system on every workload, and ablations of both levels.

python bench/levels.py [--systems deepep,dysharp] [--workloads S-8:256,...] [--json FILE]
                       [--stripe even] [--neutral acks,links] [--trains 4] [--seeds 6] [--random 80 --seed 30 --csv FILE --packet FILE --itself]

Prints one line a point: burst us, packet us, and how much later the packet level ends. A line goes out as soon as it is known,
and `--json` keeps finished points, so a second call continues. A point takes 10 s to 5 min of one core.

`--neutral` takes mechanisms away where the levels have them (docs/design/0010, Where the levels part):

acks     both levels: acknowledgements go before rows (`fabric.acks=first`)
links    both levels: one link has the bandwidth, the buffers and the reduction table of all links of a GPU
buffers  both levels: virtual channels, and with them the buffers of outputs, hold eight times as much
tables   both levels: no hub looks up its AL Table
gemms    both levels: GEMMs take a hundredth of their time

`--trains` cuts the rows of Dispatch into that many trains at burst level, while the packet level keeps the default Program.
`--random N --seed S` takes N points of a seeded draw over systems, models, clusters, tokens and seeds (bench/level_draw.py) instead, and ends with a
histogram of the signed differences; `--csv` writes the points.
`--packet FILE` takes the packet level's times from an earlier `--json`, and runs the points that the file lacks.
`--itself` compares the burst level with itself, on twice as many channels of half the size: how much one draw decides.
`--seeds N` runs the seeds 0 .. N - 1 and prints the mean difference and its standard deviation over them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from level_draw import draw, spread

from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import STRIPES, FabricConfig, fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.program import Kind, Program
from dysharp.specs import choice_int, load_cluster, load_model
from dysharp.specs.choices import choices_overridden
from dysharp.systems import get_system
from dysharp.workload import make_routing

SYSTEMS = ("deepep", "comet", "fusion-only", "dysharp-basic", "dysharp-comet", "dysharp", "explicit", "nvls", "megatron-ag")
WORKLOADS = (
    "S-8:256", "S-8:512", "S-8:1024", "M-8:256", "L-8:1024", "deepseek-v2-lite:256", "deepseek-v2-lite:1024", "gpt-oss-20b:256",
    "gpt-oss-20b:1024", "deepseek-v2-lite:64:paper-nvl72:64", "S-16:64:paper-nvl72:64", "S-16:64:paper-nvl72:72",
    "deepseek-v2-lite:64:paper-gh200-nvl64:64",
)  # fmt: skip
"""MODEL:TOKENS[:CLUSTER[:GPUS]]. The routing is the model's own: recorded for real models, uniform for the paper's."""

Levels = tuple[Program, FabricConfig]
AMPLE = 8  # times the buffers


def acks_first(p: Program, config: FabricConfig) -> Levels:
    """Acknowledgements overtake rows; at packet level notifications do, too."""
    return replace(p, hardware=replace(p.hardware, ack_turns=False)), replace(config, acks="first")


def one_link(p: Program, config: FabricConfig) -> Levels:
    """One link a GPU; nothing is striped."""
    n = p.hardware.n_links
    wires = replace(p.wires, stripe_up=0 * p.wires.stripe_up, stripe_response=0 * p.wires.stripe_response)
    p = replace(p, hardware=replace(p.hardware, n_links=1), wires=wires)
    return p, replace(config, vc_flits=n * config.vc_flits, reduction_entries=n * config.reduction_entries)


def ample_buffers(p: Program, config: FabricConfig) -> Levels:
    """Channels that hold `AMPLE` times as much."""
    hardware = replace(p.hardware, vc_bytes=AMPLE * p.hardware.vc_bytes)
    return replace(p, hardware=hardware), replace(config, vc_flits=AMPLE * config.vc_flits)


def no_tables(p: Program, config: FabricConfig) -> Levels:
    """Hubs know the places of all rows."""
    return replace(p, tables=(), templates=tuple(replace(t, table=-1) for t in p.templates)), replace(config, al_entries=0)


def short_gemms(p: Program, config: FabricConfig) -> Levels:
    """GEMMs take a hundredth of their time."""
    durations = p.durations.copy()
    rows = [t.duration for t in p.templates if t.kind is Kind.COMPUTE]
    durations[rows] //= 100
    return replace(p, durations=durations), config


NEUTRAL: dict[str, Callable[[Program, FabricConfig], Levels]] = {
    "acks": acks_first,
    "links": one_link,
    "buffers": ample_buffers,
    "tables": no_tables,
    "gemms": short_gemms,
}


def point(system: str, workload: str, given: argparse.Namespace, seed: int) -> tuple[float, float]:
    """(burst us, packet us) of a forward layer at the defaults, but for what `given` changes."""
    default = choice_int("machine.row_trains")
    program, config = changed(system, workload, given, seed, default)
    burst = program if given.trains == default else changed(system, workload, given, seed, given.trains)[0]
    if given.lines:
        burst = replace(burst, hardware=replace(burst.hardware, hashed_links=True))
    times = json.loads(given.packet.read_text()) if given.packet else {}
    if given.itself:
        h = burst.hardware
        halves = replace(burst, hardware=replace(h, n_vcs=2 * h.n_vcs, vc_bytes=h.vc_bytes // 2))
        return run_burst(burst)[0].time_ps / 1e6, run_burst(halves)[0].time_ps / 1e6
    known_us = times.get(f"{workload} {system}{label(given, seed)}")
    packet = known_us[1] if known_us else run_packet(program, config).trace.time_ps / 1e6
    return run_burst(burst)[0].time_ps / 1e6, packet


def changed(system: str, workload: str, given: argparse.Namespace, seed: int, trains: int) -> Levels:
    """Program and fabric without the mechanisms of `--neutral`, rows of Dispatch in `trains` trains."""
    with choices_overridden({"machine.row_trains": trains}):
        program, config = planned(system, workload, given.stripe, seed)
    for name in given.neutral:
        program, config = NEUTRAL[name](program, config)
    return program, config


def planned(
    system: str, workload: str, stripe: str, seed: int, options: Mapping[str, object] = MappingProxyType({}), placement: str = "auto"
) -> Levels:  # fmt: skip
    """The Program of a workload, and the fabric of its cluster with this choice of links."""
    parts = workload.split(":")
    name, tokens, cluster_name, gpus = (*parts, "paper-gh200-nvl32", "32")[:4] if len(parts) < 4 else parts
    model, cluster = load_model(name), replace(load_cluster(cluster_name), n_gpus=int(gpus))
    routing = make_routing(model.routing, model, int(gpus), int(tokens), seed=seed, layer=None, placement=placement)
    chosen = get_system(system)
    return chosen.plan(model, cluster, routing, "fwd", chosen.options(**options)), replace(fabric_of(cluster), stripe=stripe)


def label(given: argparse.Namespace, seed: int) -> str:
    """What differs from the defaults, as part of a key of `--json`."""
    words = [given.stripe] if given.stripe != FabricConfig().stripe else []
    words += given.neutral
    words += [f"trains={given.trains}"] if given.trains != choice_int("machine.row_trains") else []
    words += [f"seed={seed}"] if seed else []
    return "".join(f" {word}" for word in words)


def mechanisms(text: str) -> list[str]:
    """The names of `NEUTRAL` in comma-separated text."""
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in NEUTRAL]:
        raise argparse.ArgumentTypeError(f"found {unknown[0]!r}, expected some of {','.join(NEUTRAL)}")
    return names


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--json", type=Path, help="finished points, read and written")
    parser.add_argument("--stripe", default=FabricConfig().stripe, choices=STRIPES, help="how packets choose links")
    parser.add_argument("--neutral", default=[], type=mechanisms, help=f"mechanisms to take away: {','.join(NEUTRAL)}")
    parser.add_argument("--trains", default=choice_int("machine.row_trains"), type=int, help="trains of a row of Dispatch at burst level")
    parser.add_argument("--seeds", default=1, type=int, help="draws of the routing")
    parser.add_argument("--random", default=0, type=int, help="points of a draw, in place of systems and workloads")
    parser.add_argument("--seed", default=0, type=int, help="of the draw")
    parser.add_argument("--lines", action="store_true", help="unequal links at burst level, too (`fabric.stripe=rotating`)")
    parser.add_argument("--packet", type=Path, help="times of the packet level from an earlier --json")
    parser.add_argument("--itself", action="store_true", help="twice as many channels of half the size at burst level, in place of the packet level")
    parser.add_argument("--csv", type=Path, help="the points of the draw, written")
    given = parser.parse_args(argv)
    done = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    print("| workload | system | burst us | packet us | packet over burst |\n|---|---|---|---|---|")
    if given.random:
        drawn(given, done)
        return
    for workload in given.workloads.split(","):
        for system in given.systems.split(","):
            times = []
            for seed in range(given.seeds):
                times.append(known(system, workload, given, seed, done))
            print(f"| {workload} | {system} | {line(np.array(times))} |", flush=True)


def known(system: str, workload: str, given: argparse.Namespace, seed: int, done: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """A point from `done`, or run and kept there."""
    key = f"{workload} {system}{label(given, seed)}"
    if key not in done:
        done[key] = point(system, workload, given, seed)
        if given.json:
            given.json.write_text(json.dumps(done, indent=1))
    return done[key]


def drawn(given: argparse.Namespace, done: dict[str, tuple[float, float]]) -> None:
    """The points of a draw, one line each, and how their differences spread."""
    rows, later = ["system,workload,seed,burst_us,packet_us,packet_over_burst_percent"], []
    for p in draw(given.random, given.seed, lambda system, workload, seed: planned(system, workload, given.stripe, seed)[0]):
        burst, packet = known(p.system, p.workload, given, p.seed, done)
        later.append(packet / burst - 1)
        rows.append(f"{p.system},{p.workload},{p.seed},{burst:.3f},{packet:.3f},{100 * later[-1]:.2f}")
        print(f"| {p.workload} | {p.system} | {line(np.array([(burst, packet)]))} |", flush=True)
    print("\n".join(spread(np.array(later))))
    if given.csv:
        given.csv.write_text("\n".join(rows) + "\n")


def line(times: np.ndarray) -> str:
    """Mean times and difference of `times` [seeds, 2] us (burst, packet); of several seeds also the standard deviation."""
    (burst, packet), later = times.mean(axis=0), times[:, 1] / times[:, 0] - 1
    spread = f" (deviation {100 * later.std(ddof=1):.1f} points)" if len(times) > 1 else ""
    return f"{burst:.2f} | {packet:.2f} | {later.mean():+.1%}{spread}"


if __name__ == "__main__":
    main(sys.argv[1:])
