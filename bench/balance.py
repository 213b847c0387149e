"""Balance by software against DySHARP: what exact plans, EPLB and the choice among replicas bring, and what they cost.

    python bench/balance.py [PART ...]

| part | prints |
|---|---|
| compare | DeepEP, fusion-only and DySHARP with each placement on recorded skew: times, and the answers to the expectations |
| conformance | faults of three systems with an exact plan and with a choice by the switch |
| levels | packet level over burst level |

Exits with 1 where a bar is missed. Expected: docs/notebook/2026-11-29-balance-expected.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from functools import cache

import dysharp
from dysharp.specs import Model, choice_int, load_cluster
from dysharp.specs.choices import choices_overridden
from dysharp.testing.conformance import conformance
from dysharp.workload import make_routing, rows_per_expert
from dysharp.workload.placement import eplb

SYSTEMS = ("deepep", "fusion-only", "dysharp")
FREE, CHARGED = "exact:plan=0,prefetch=hidden", "exact"
PLACEMENTS = ("auto", "eplb:slots=SPARE", FREE, CHARGED)
RELAYED = "exact:weights=relay", f"{FREE},least=1024", "exact:least=1024,weights=relay"
LITE, V3 = {"model": "deepseek-v2-lite"}, {"model": "deepseek-v3", "routing": "loads:deepseek-v2-lite"}
LAYERS: tuple[dict[str, object], ...] = (
    {**LITE, "gpus": 8, "tokens": 1024}, {**LITE, "gpus": 32, "tokens": 1024}, {"model": "gpt-oss-20b", "gpus": 8, "tokens": 1024},
    {**V3, "gpus": 32, "tokens": 1024},
)  # fmt: skip
TASKS = ("law", "intent", "summary", "translation")
STALLED_LAYERS = 58
LEVELS = 0.03


@cache
def us(system: str, layer: str, placement: str, choices: tuple[tuple[str, str | int], ...] = ()) -> float:
    """The time of a layer (JSON)."""
    with choices_overridden(dict(choices)):
        return float(dysharp.run(system, **json.loads(layer), placement=placement).time_us)


def us_of(system: str, layer: Mapping[str, object], placement: str, **choices: str | int) -> float:
    """`us` with a spare slot of each GPU for SPARE, and free choices with `_` for the first dot."""
    model, gpus = dysharp.load_model(str(layer["model"])), int(str(layer["gpus"]))
    spare = (-(-model.n_experts // gpus) + 1) * gpus
    overridden = tuple((name.replace("__", "."), value) for name, value in choices.items())
    return us(system, json.dumps(layer), placement.replace("SPARE", str(spare)), overridden)


def compare() -> bool:
    """Times of every layer and placement, then the numbered answers."""
    for layer in LAYERS:
        print(layer)
        for placement in PLACEMENTS:
            times = {system: us_of(system, layer, placement) for system in SYSTEMS}
            over = ", ".join(f"{system} {time:.1f}" for system, time in times.items())
            ratio = f"DySHARP {times['deepep'] / times['dysharp']:.2f}x DeepEP, {times['fusion-only'] / times['dysharp']:.2f}x fusion-only"
            print(f"  {placement}: {over} us; {ratio}", flush=True)
    small, large, _, v3 = LAYERS
    for name, layer in (("8", small), ("32", large)):
        print(f"1: {name} GPUs: {us_of('deepep', layer, 'auto') / us_of('deepep', layer, FREE):.2f}x")
        for number, base in (("2", "deepep"), ("3", "fusion-only")):
            with_exact, without = (us_of(base, layer, p) / us_of("dysharp", layer, p) for p in (FREE, "auto"))
            print(f"{number}: {name} GPUs over {base}: {with_exact:.2f}x with exact, {without:.2f}x without, {with_exact / without:.2f}")
    for number, base in (("4", "fusion-only"), ("5", "deepep")):
        print(f"{number}: {base} exact and free over DySHARP as it is: {us_of(base, large, FREE) / us_of('dysharp', large, 'auto'):.2f}")
    for tokens in (256, 512, 1024, 2048, 4096, 8192):
        layer = {**large, "tokens": tokens}
        for system in SYSTEMS:
            plain, free, charged = (us_of(system, layer, p) for p in ("auto", FREE, CHARGED))
            print(f"6: {tokens} tokens, {system}: {plain:.1f}, free {free:.1f}, charged {charged:.1f}: {(plain - charged) / (plain - free):.0%} kept")
    for layer in (small, large, v3):
        hidden, *rest = (us_of("fusion-only", layer, f"exact:plan=0,prefetch={when}") for when in ("hidden", "beside", "before"))
        print(f"7, 8: {layer}: weights beside {rest[0] - hidden:+.1f} us, before {rest[1] - hidden:+.1f} us")
        hidden, relay = (us_of("fusion-only", layer, f"exact:plan=0,prefetch={when}") for when in ("hidden", "beside,weights=relay"))
        print(f"18: weights beside by relay {relay - hidden:+.1f} us")
    for tokens in (1024, 2048, 8192):
        layer = {**large, "tokens": tokens}
        for system in SYSTEMS:
            plain, free = (us_of(system, layer, p) for p in ("auto", FREE))
            part = {p: (plain - us_of(system, layer, p)) / (plain - free) for p in RELAYED}
            print(f"19-21: {tokens} tokens, {system}: " + ", ".join(f"{p} {kept:.0%}" for p, kept in part.items()) + " of the free gain", flush=True)
    for system in SYSTEMS:
        print(f"9: {system}: EPLB over exact free {us_of(system, large, 'eplb:slots=SPARE') / us_of(system, large, FREE) - 1:+.1%}")
    print(f"11: switch over turns {us_of('dysharp', large, 'eplb:choose=switch') / us_of('dysharp', large, 'eplb') - 1:+.1%}")
    _of_another_task()
    decode = {**v3, "tokens": 128}
    stall = 1e3 * choice_int("eplb.stall_ms") / choice_int("eplb.interval_steps") / STALLED_LAYERS
    gain = us_of("deepep", decode, "auto") - us_of("deepep", decode, "eplb:slots=SPARE")
    print(f"16: stalls {stall:.1f} us a layer, EPLB gains {gain:.1f} us ({stall / gain:.2f})")
    wide, narrow = (us_of("dysharp", large, "eplb:choose=switch", switch_choice__bits=bits) for bits in (24, 16))
    print(f"17: 24 bits {wide:.3f} us, 16 bits {narrow:.3f} us")
    return True


def _of_another_task() -> None:
    """EPLB's slots from the loads of the first task, tokens of the others, 32 GPUs with 1,024 tokens."""
    kept, found = [], {}
    for task in TASKS[1:]:
        layer = {**LAYERS[1], "routing": f"trace:deepseek-v2-lite-{task}"}
        number = make_routing(str(layer["routing"]), dysharp.load_model("deepseek-v2-lite"), 32, 1024).layer
        before = make_routing(f"trace:deepseek-v2-lite-{TASKS[0]}:layer={number}", dysharp.load_model("deepseek-v2-lite"), 32, 1024)
        held = eplb(rows_per_expert(before), 32).slot_expert.reshape(32, -1).tolist()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(held, file)
            file.flush()
            plain, old, free = (us_of("deepep", layer, p) for p in ("auto", file.name, FREE))
            kept.append((plain - old) / (plain - free))
            for rule in ("turns", "random", "local", "switch", "replicas"):
                counts = {"switch_choice__counts": "replicas"} if rule == "replicas" else {}
                chosen = f"{file.name}:choose={'switch' if rule == 'replicas' else rule}"
                found.setdefault(rule, []).append([us_of(system, layer, chosen, **counts) for system in SYSTEMS])
        print(f"{task}: layer {number}: DeepEP {plain:.1f}, EPLB by another task {old:.1f}, exact free {free:.1f} us")
    print(f"10: EPLB by another task keeps {sum(kept) / len(kept):.0%}")
    for rule, rows in found.items():
        over = [sum(row[i] / base[i] for row, base in zip(rows, found["turns"], strict=True)) / len(rows) - 1 for i in range(len(SYSTEMS))]
        print(f"12-15: {rule} over turns: " + ", ".join(f"{system} {part:+.1%}" for system, part in zip(SYSTEMS, over, strict=True)))


TINY = Model("tiny", 256, 128, 16, 2, 24, 2, 2, "fp8")
BALANCED = ("exact", "exact:prefetch=before,weights=relay", "eplb:choose=switch", "eplb:choose=local")


def conforms() -> bool:
    """Faults of the three systems."""
    good, cluster = True, load_cluster("paper-gh200-nvl32").with_gpus(4)
    for placement in BALANCED:
        routing = make_routing("lognormal:1", TINY, 4, 24, seed=1, placement=placement)
        for system in SYSTEMS:
            report = conformance(system, model=TINY, cluster=cluster, routing=routing)
            good &= bool(report)
            print(system, placement, report, flush=True)
    return good


def levels() -> bool:
    """Packet over burst level."""
    later = []
    for placement in BALANCED:
        for system in (*SYSTEMS, "moe-hub"):
            layer = {**LITE, "gpus": 8, "tokens": 64}
            burst, packet = (dysharp.run(system, **layer, placement=placement, fidelity=level).time_us for level in ("burst", "packet"))
            later.append(packet / burst - 1)
            print(f"{system} {placement}: burst {burst:.2f} us, packet {later[-1]:+.1%}", flush=True)
    print(f"levels: {len(later)} points, within 3 %: {sum(abs(part) <= LEVELS for part in later)}, ends {min(later):+.1%} {max(later):+.1%}")
    return all(abs(part) <= LEVELS for part in later)


def main() -> int:
    """The verdict."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"compare": compare, "conformance": conforms, "levels": levels}
    flags.add_argument("parts", nargs="*", default=[])
    asked = flags.parse_args()
    return int(not all([parts[name]() for name in asked.parts or parts]))


if __name__ == "__main__":
    sys.exit(main())
