"""Where the gain comes from: 30 drawn layers, whose parts must be differences of two runs that anybody can repeat.

    python bench/why.py [--layers N] [--map N] [--seed S]

Prints for each layer the parts of DySHARP in every order, in us, and the parts whose sign depends on the order. Exits with 1 where a part is no
difference of two runs, where parts do not sum to the whole, or past the bounds of docs/notebook/2026-11-28-where-the-gain-comes-from-expected.md.
With --map N layers that `compare --map` did not use: its closed forms against runs, by the bounds of docs/notebook/2026-11-28-gain-map-found.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import replace

import dysharp
from dysharp.planning.gain import EVEN, SYSTEMS, gains, layer_us
from dysharp.workload import make_routing

DRAWS = {
    "model": ("S-8", "S-32", "M-8", "M-32", "L-8", "L-32", "deepseek-v2-lite"), "gpus": (8, 16, 32), "tokens": (64, 128, 256, 512, 1024),
    "routing": ("uniform", "powerlaw:1.0"), "seed": (0, 1, 2),
}  # fmt: skip
SWITCH = ("multicast", "reduction", "addresses")
MAP_DRAWS = {
    "model": ("S-8", "S-32", "M-8", "M-32", "L-8", "L-32", "deepseek-v2-lite", "qwen3-30b"), "gpus": (8, 16, 32), "tokens": (48, 96, 192, 384, 768),
    "skew": (0.0, 0.5, 0.7, 1.3), "links": (0.5, 1, 2), "topk": (0.5, 1), "seed": (3, 4, 5, 6, 7, 8, 9),
}  # fmt: skip


def of_map(layers: int, seed: int) -> int:
    """The verdict on closed forms."""
    draw, pairs = random.Random(seed), {}
    for _ in range(layers):
        one = {key: draw.choice(values) for key, values in MAP_DRAWS.items()}
        model, cluster = dysharp.load_model(one["model"]), dysharp.load_cluster("paper-gh200-nvl32").with_gpus(one["gpus"])
        model = replace(model, topk=round(model.topk * one["topk"]))
        cluster = replace(cluster, link_bytes_per_us=round(cluster.link_bytes_per_us * one["links"]))
        routing = make_routing(f"powerlaw:{one['skew']}" if one["skew"] else "uniform", model, one["gpus"], one["tokens"], seed=one["seed"])
        rows = dysharp.compare(SYSTEMS, model=model, cluster=cluster, tokens=one["tokens"], routing=routing).rows
        found, said = gains({row.system: row.layer_us for row in rows}), gains(layer_us(model, cluster, routing))
        for name, gain in found.items():
            pairs.setdefault(name, []).append((gain, said[name]))
        print(*one.values(), ", ".join(f"{name} {gain:+.1%} (map {said[name]:+.1%})" for name, gain in found.items()), flush=True)
    right = {}
    for name, both in pairs.items():
        off, sure = sorted(abs(run - form) for run, form in both), [(run, form) for run, form in both if abs(form) > EVEN]
        right[name] = sum(run * form > 0 for run, form in sure) / max(1, len(sure))
        most = f"{off[len(off) * 9 // 10]:.1%} in nine of ten, {off[-1]:.1%} at most"
        print(f"{name}: sign right {right[name]:.0%} of {len(sure)}; off by {statistics.median(off):.1%} in the median, {most}")
    off = sorted(abs(run - form) for run, form in pairs["switch"])
    return int(right["switch"] < 0.8 or min(right.values()) < 0.75 or statistics.median(off) > 0.06 or off[len(off) * 9 // 10] > 0.2)


def main() -> int:
    """The verdict."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--layers", type=int, default=30)
    flags.add_argument("--map", type=int, default=0)
    flags.add_argument("--seed", type=int, default=57)
    asked = flags.parse_args()
    if asked.map:
        return of_map(asked.map, asked.seed)
    draw, faults, mixed, of_switch, alone, addresses = random.Random(asked.seed), [], 0, 0, [], []
    for n in range(asked.layers):
        layer = {key: draw.choice(values) for key, values in DRAWS.items()}
        why = dysharp.compare(["deepep", "dysharp"], why=True, **layer).why
        names = {name for order in why.orders for step in order for name in (step.before, step.system)}
        us = {name: dysharp.run(name, **layer).time_us for name in sorted(names)}
        for order in why.orders:
            faults += [f"{n}: {step.part}" for step in order if step.saved_us != us[step.before] - us[step.system]]
            if abs(sum(step.saved_us for step in order) - (us["deepep"] - us["dysharp"])) > 1e-6:
                faults.append(f"{n}: sum")
        first = {step.part: step.saved_us for step in why.orders[0]}
        mixed += bool(why.mixed)
        of_switch += sum(first[part] for part in SWITCH) > max(first[part] for part in first if part not in SWITCH)
        alone.append(us["fusion-only"] / us["multicast-only"] - 1)
        addresses.append(us["explicit"] / us["dysharp"] - 1)
        print(" ".join(str(value) for value in layer.values()), f"deepep {us['deepep']:.1f} dysharp {us['dysharp']:.1f}")
        for order in why.orders:
            print("   ", ", ".join(f"{step.part} {step.saved_us:+.1f}" for step in order))
        print("    sign depends on the order:", ", ".join(why.mixed) or "none", flush=True)
    print(f"parts that are no difference, or no sum: {len(faults)} {faults[:5]}")
    print(f"layers with a part whose sign depends on the order: {mixed}; layers where the switch is the largest part: {of_switch}")
    print(f"multicast alone: {min(alone):+.1%} to {max(alone):+.1%}; addresses: {min(addresses):+.1%} to {max(addresses):+.1%}")
    within = 1 <= mixed <= 25 and of_switch <= 20 and max(alone) <= 0.15 and min(addresses) >= -0.03 and max(addresses) <= 0.15
    return int(bool(faults) or not within)


if __name__ == "__main__":
    sys.exit(main())
