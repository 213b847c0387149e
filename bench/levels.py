"""Burst level against packet level at the defaults, with the published tables: time of every system on every workload.

python bench/levels.py [--systems deepep,dysharp] [--workloads S-8:256,...] [--stripe even] [--json FILE]

Prints one line a point: burst us, packet us, and how much later the packet level ends. A line goes out as soon as it is known,
and `--json` keeps finished points, so a second call continues. A point takes 10 s to 5 min of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import STRIPES, FabricConfig, fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing

SYSTEMS = ("deepep", "comet", "fusion-only", "dysharp-basic", "dysharp-comet", "dysharp", "explicit", "nvls", "megatron-ag")
WORKLOADS = (
    "S-8:256", "S-8:512", "S-8:1024", "M-8:256", "L-8:1024", "deepseek-v2-lite:256", "deepseek-v2-lite:1024", "gpt-oss-20b:256",
    "gpt-oss-20b:1024", "deepseek-v2-lite:64:paper-nvl72:64", "S-16:64:paper-nvl72:64", "S-16:64:paper-nvl72:72",
    "deepseek-v2-lite:64:paper-gh200-nvl64:64",
)  # fmt: skip
"""MODEL:TOKENS[:CLUSTER[:GPUS]]. The routing is the model's own: recorded for real models, uniform for the paper's."""


def point(system: str, workload: str, stripe: str) -> tuple[float, float]:
    """(burst us, packet us) of a forward layer at all defaults, but for how packets choose links (`fabric.stripe`)."""
    name, tokens, cluster_name, gpus = (*workload.split(":"), "paper-gh200-nvl32", "32")[:4] if workload.count(":") < 3 else workload.split(":")
    model, cluster = load_model(name), replace(load_cluster(cluster_name), n_gpus=int(gpus))
    routing = make_routing(model.routing, model, int(gpus), int(tokens), seed=0, layer=None, placement="auto")
    chosen = get_system(system)
    program = chosen.plan(model, cluster, routing, "fwd", chosen.options())
    return run_burst(program)[0].time_ps / 1e6, run_packet(program, replace(fabric_of(cluster), stripe=stripe)).trace.time_ps / 1e6


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--json", type=Path, help="finished points, read and written")
    parser.add_argument("--stripe", default=FabricConfig().stripe, choices=STRIPES, help="how packets choose links")
    given = parser.parse_args(argv)
    done = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    print("| workload | system | burst us | packet us | packet over burst |\n|---|---|---|---|---|")
    for workload in given.workloads.split(","):
        for system in given.systems.split(","):
            key = f"{workload} {system}" + (f" {given.stripe}" if given.stripe != FabricConfig().stripe else "")
            if key not in done:
                done[key] = point(system, workload, given.stripe)
                if given.json:
                    given.json.write_text(json.dumps(done, indent=1))
            burst, packet = done[key]
            print(f"| {workload} | {system} | {burst:.2f} | {packet:.2f} | {packet / burst - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
