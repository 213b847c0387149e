"""Area of a table against the time of a layer: sizes, and the knee (the smallest size within 1 % of the largest). `--tokens N` per GPU."""

from __future__ import annotations

import argparse
from dataclasses import replace

import dysharp
from dysharp.silicon.cluster_area import area_columns
from dysharp.specs import load_cluster

SIZES = {
    "al_tlb_entries": ("AL TLB entries", [64, 128, 256, 512, 1024, 2048], 1, "area_gpu_mm2"),
    "reduction_buffer_bytes": ("reduction buffer (KiB)", [4, 8, 16, 32, 64], 1024, "area_switch_mm2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    tokens = parser.parse_args().tokens
    cluster = load_cluster("paper-gh200-nvl32")
    for key, (name, sizes, unit, column) in SIZES.items():
        machines = {size: replace(cluster, **{key: size * unit}) for size in sizes}
        times = {
            size: dysharp.run(
                "dysharp", model="S-8", cluster=machine, gpus=8, tokens=tokens, fidelity="packet", options={"compute": False}
            ).time_us
            for size, machine in machines.items()
        }
        last = times[sizes[-1]]
        print(f"{name}, {tokens} tokens per GPU")
        for size in sizes:
            print(f"{size:6} {area_columns(machines[size])[column]:8.4f} mm2 {times[size]:8.2f} us {times[size] / last:6.3f}")
        print(f"knee: {next(size for size in sizes if all(times[s] <= 1.01 * last for s in sizes if s >= size))}\n")


if __name__ == "__main__":
    main()
