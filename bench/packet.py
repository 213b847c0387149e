"""Speed of the packet level on the 32-terminal crossbar (events and flit-exact), and layers on both levels.

python bench/packet.py                                                # flits per second
python bench/packet.py --systems dysharp,deepep [--model S-8] [--tokens 256] [--routing R] [--windows D C] [--finite]
python bench/packet.py --model M-8 --window 512 [--whole]     # a window of the model's own tokens against the whole at burst level
"""

from __future__ import annotations

import argparse
import sys

from crossbar_events import measure_events

import dysharp
from dysharp.engine.burst.run import run_burst
from dysharp.engine.flit.network import NetworkConfig, Protocol, RouterConfig, Traffic, measure
from dysharp.engine.packet.fabric import FabricConfig, fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing

RECORDED = 229_000, 291_000  # flits/s of the established router simulator (its recorded curves)


def crossbar() -> None:
    """32 terminals, 16 VCs of 256 flits, packets of 9 flits, speed-up 2."""
    config = NetworkConfig(k=32, router=RouterConfig(num_vcs=16, vc_buf_size=256, internal_speedup=2))
    protocol = Protocol(period=4000, warmup_periods=1, max_periods=4, threshold=1e-9, check=False)
    print("| load | events Mflits/s | flit-exact Mflits/s | over the recorded simulator |\n|---|---|---|---|")
    for load in (0.1, 0.5, 0.9):
        traffic = Traffic(packet_flits=9)
        events, exact = measure_events(config, traffic, load, 1, protocol), measure(config, traffic, load, 1, protocol)
        low, high = events.flits_per_s / RECORDED[1], events.flits_per_s / RECORDED[0]
        print(f"| {load} | {events.flits_per_s / 1e6:.1f} | {exact.flits_per_s / 1e6:.1f} | {low:.0f} to {high:.0f} times |")


def systems(given: argparse.Namespace) -> None:
    """A model on 32 GPUs: times and mean use of the up links at both levels with infinite tables, and with the cluster's tables (`--finite`)."""
    model, cluster = load_model(given.model), load_cluster("paper-gh200-nvl32")
    routing = make_routing(given.routing or model.routing, model, 32, given.tokens, seed=0, layer=None, placement="auto")
    infinite = FabricConfig(n_planes=cluster.n_switches, speedup=cluster.internal_speedup)
    windows_of = dict(zip(("dispatch_window", "combine_window"), given.windows or (), strict=False))
    print("| system | burst us | packet us | difference | links used, burst | packet | with the cluster's tables us | Mevents | Mevents/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.systems.split(","):
        system = get_system(name)
        program = system.plan(model, cluster, routing, "fwd", system.options(**windows_of))
        burst, run = run_burst(program)[0], run_packet(program, infinite)
        finite = f"{run_packet(program, fabric_of(cluster)).trace.time_ps / 1e6:.2f}" if given.finite else "-"
        ours, theirs, n = run.trace.time_ps, burst.time_ps, run.trace.n_events
        wire_ps = burst.up_busy.mean() * 1e6 / cluster.link_bytes_per_us  # bytes of every link are equal at both levels
        used = f"{wire_ps / theirs:.1%}", f"{wire_ps / ours:.1%}"
        cells = name, f"{theirs / 1e6:.2f}", f"{ours / 1e6:.2f}", f"{ours / theirs - 1:+.2%}", *used, finite
        print("|", " | ".join((*cells, f"{n / 1e6:.1f}", f"{n / run.timing.engine_s / 1e6:.2f}")), "|", flush=True)


INFINITE = {"fabric.al_entries": 0, "fabric.reduction_entries": 0, "fabric.queue_entries": 0}


def windows(names: list[str], of: str, window: int, whole: bool) -> None:
    """A window of a model on 32 GPUs, infinite tables: what it says about the whole, beside both levels on the whole (packet: if `whole`)."""
    print("| system | tokens | window | window says us | half the window says us | burst whole us | over burst | packet whole us | window's error |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        packet = {"model": of, "fidelity": "packet", "options": INFINITE}
        burst, part = dysharp.run(name, model=of), dysharp.run(name, window=window, **packet)
        w, full = part.window, dysharp.run(name, **packet).time_us if whole else None
        cells = name, w["of_tokens"], window, f"{w['time_us']:.2f}", f"{w['half_window_time_us']:.2f}", f"{burst.time_us:.2f}"
        measured = ("-", "-") if full is None else (f"{full:.2f}", f"{w['time_us'] / full - 1:+.2%}")
        compared = f"{w['time_us'] / burst.time_us - 1:+.2%}", *measured
        print("|", " | ".join(map(str, (*cells, *compared))), "|", flush=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="S-8")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--systems", help="only this: both levels beside each other")
    parser.add_argument("--routing", help="of --systems: any routing, or a recorded trace (default: the model's)")
    parser.add_argument("--windows", type=int, nargs=2, help="of --systems: tokens in flight in Dispatch and Combine (default: the system's)")
    parser.add_argument("--finite", action="store_true", help="of --systems: also with the cluster's tables")
    parser.add_argument("--window", type=int, help="only this: the first so many tokens of each GPU, of the model's own number")
    parser.add_argument("--whole", action="store_true", help="with --window: run the whole at packet level too (S-8: minutes)")
    given = parser.parse_args(argv)
    if given.window:
        windows((given.systems or "dysharp").split(","), given.model, given.window, given.whole)
    elif given.systems:
        systems(given)
    else:
        crossbar()


if __name__ == "__main__":
    main(sys.argv[1:])
