"""Golden checks of the Pangu papers by `dysharp plan`'s cost: `python bench/plan_golden.py` prints each with its bar.

All on `paper-ascend-910b`, with MindSpeed's slots. Pangu Pro's experts are balanced over ranks by its grouped router, so its imbalance is 1.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

from dysharp.base.units import GiB
from dysharp.model.flops import MEGATRON, model_flops
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.names import saving_of, short_of
from dysharp.planning.plan import Planned, Search, plan_shapes, training_recipe_for
from dysharp.planning.search import _degrees_of, kept
from dysharp.planning.space import INTEGERS, Space, Task, default_space
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.whole import WholeModel
from dysharp.training.recipe import TrainingRecipe

CLUSTER = load_cluster("paper-ascend-910b")
MACHINE = machine_of(CLUSTER)
ULTRA, PRO = load_whole("pangu-ultra-moe"), load_whole("pangu-pro-moe")
FINE = ("mla_up_proj", "layernorm", "moe_act")
PUBLISHED: dict[str, Any] = {
    "tp": 8, "pp": 16, "vpp": 2, "ep": 32, "etp": 1, "cp": 1, "micro_batch": 2, "recompute": FINE, "offload": (),
    "weights": "whole", "schedule": "1f1b", "overlap": "pair", "system": "hierarchical",
}  # fmt: skip


def task(model: WholeModel, gpus: int, batch: int, sequence: int = 4096, imbalance: float | None = None) -> Task:
    """A task on Ascend NPUs."""
    return Task(model, gpus, batch, sequence, training_recipe=training_recipe_for(model, MACHINE), imbalance=imbalance, framework="mindspeed")


def place() -> None:
    """The place of the published layout among all sets of degrees that fit, each in its fastest form, and what those before it have."""
    own = task(ULTRA, 6144, 6144)
    coster = Coster(own, MACHINE, default_space(own, MACHINE))
    published = coster.cost_of(PUBLISHED)
    fit, fast, even = set(), dict[tuple[int, ...], Costed](), dict[tuple[int, ...], float]()
    for number, bound in admitted(coster):
        values, degrees = coster.space.candidate(number), _degrees_of(coster.space, number)
        lean = values["recompute"] == ("full",) and values["system"] == "flat" and values["schedule"] == "1f1b" and degrees not in fit
        if bound >= published.step_us and not lean:
            continue
        one = coster.cost(number)
        if one.peak_bytes > coster.capacity:
            continue
        fit.add(degrees)
        even[degrees] = min(even.get(degrees, inf), without_uneven(one))
        if one.step_us < published.step_us and (degrees not in fast or one.step_us < fast[degrees].step_us):
            fast[degrees] = one
    ranked = sorted(fast.values(), key=lambda one: one.step_us)
    at, behind = 1 + len(ranked), 100 * (published.step_us / ranked[0].step_us - 1)
    print(f"Pangu Ultra, published layout: place {at} of {len(fit)} ({100 * at / len(fit):.1f} %, bar 3)")
    print(f"  {behind:.1f} % behind {short_of(ranked[0])}")
    before = sum(us < without_uneven(published) for us in even.values())
    print(f"  with even stages for all: place {1 + before} ({100 * (1 + before) / len(fit):.1f} %)")
    differences(ranked, published, fit)
    for one in (*ranked[:3], published):
        print("  " + short_of(one), one.values["system"], one.values["overlap"], saving_of(one), one.layout.stages, shares(one))


def differences(ranked: list[Costed], published: Costed, fit: set[tuple[int, ...]]) -> None:
    """For every dimension: how many layouts before the published one differ in it, their values, and the place among those that do not differ."""
    print("  | dimension | published | layouts before that differ | their values | place among equal ones |\n  |---|---|---|---|---|")
    for name, own in PUBLISHED.items():
        other = Counter(str(one.values[name]) for one in ranked if one.values[name] != own)
        alike = [degrees for degrees in fit if name not in INTEGERS or degrees[INTEGERS.index(name)] == own]
        same = 1 + len(ranked) - other.total()
        values = ", ".join(f"{value}: {n}" for value, n in other.most_common(4))
        print(f"  | {name} | {own} | {other.total()} | {values} | {same} of {len(alike)} ({100 * same / len(alike):.1f} %) |")
    print("  | part of the step | published, s | mean of those before, s | less in |\n  |---|---|---|---|")
    for name, us in published.parts.items():
        mean = sum(one.parts[name] for one in ranked) / len(ranked) / 1e6
        print(f"  | {name} | {us / 1e6:.2f} | {mean:.2f} | {sum(one.parts[name] < us for one in ranked)} |")


def without_uneven(one: Costed) -> float:
    """A step if its stages were even."""
    return one.step_us - one.parts["uneven stages"]


def admitted(coster: Coster) -> Iterator[tuple[int, float]]:
    """(candidate, its second bound) of all that keep every constraint but memory."""
    for numbers, rest in kept(coster):
        yield from zip(numbers.tolist(), coster.balanced_bound(rest, numbers).tolist(), strict=True)


def shares(one: Costed) -> str:
    """A step in seconds by part."""
    return f"{one.step_us / 1e6:.2f} s, {one.peak_bytes / GiB:.0f} GiB: " + ", ".join(f"{name} {us / 1e6:.2f}" for name, us in one.parts.items())


def depth() -> None:
    """61 layers before 66 of equal width, each with its best layout."""
    assert ULTRA.layer is not None
    shapes = [ULTRA, replace(ULTRA, name="66", layer=replace(ULTRA.layer, n_layers=63))]
    done = plan_shapes([task(one, 6144, 6144) for one in shapes], CLUSTER, {}, Search(1))
    speeds = {one.task.model.name: one.speed(one.found.best[0]) for one in done.shapes}
    print(f"61 layers before 66: {100 * (speeds[ULTRA.name] / speeds['66'] - 1):.1f} % (bar 10 to 20): " + "; ".join(map(first, done.shapes)))
    steps = [Coster(own, MACHINE, Space()).cost_of(PUBLISHED).step_us for own in (task(one, 6144, 6144) for one in shapes)]
    print(f"  both with the published degrees: {100 * (steps[1] / steps[0] - 1):.1f} %: 66 layers and MTP exceed its 64 slots")


def first(one: Planned) -> str:
    """A shape's best layout."""
    return f"{one.task.model.name} {short_of(one.found.best[0])} {one.found.best[0].layout.stages}"


def techniques() -> None:
    """MFU with hierarchy, overlap, VPP and fine recomputation, and without."""
    own = task(ULTRA, 6144, 6144)
    coster = Coster(own, MACHINE, default_space(own, MACHINE))
    planned = Planned(own, coster, None)  # type: ignore[arg-type]
    ways = [PUBLISHED, PUBLISHED | {"vpp": 1, "recompute": ("full",), "overlap": "none", "system": "flat"}]
    on, off = (100 * planned.mfu(coster.cost_of(values), CLUSTER) for values in ways)
    print(f"MFU {on:.1f} % with hierarchy, overlap, VPP and fine recomputation, {off:.1f} % without")
    print(f"  factor {on / off:.2f} (published 30.0, 18.9, 1.59)")


def sibling() -> None:
    """Pangu Pro's new layout before its baseline."""
    new = {"tp": 8, "pp": 5, "vpp": 5, "ep": 16, "etp": 1, "cp": 1, "micro_batch": 1, "offload": (), "weights": "whole",
           "schedule": "1f1b", "overlap": "none", "system": "hierarchical"}  # fmt: skip
    old = new | {"tp": 1, "pp": 6, "vpp": 4, "ep": 8, "cp": 8, "system": "flat"}
    for sequence in (4096, 32768):
        own = task(PRO, 3840, 3840, sequence, 1.0)
        coster = Coster(own, MACHINE, default_space(own, MACHINE))
        done = coster.cost_of(new | {"recompute": ()})
        for again in (("full",), ()):
            base = coster.cost_of(old | {"recompute": again})
            gain = 100 * (base.step_us / done.step_us - 1)
            print(f"Pangu Pro, {sequence} tokens, baseline recomputes {again or 'nothing'}: {gain:+.1f} % (published about 35)")
            print("  new " + shares(done) + "\n  old " + shares(base))


def anchors() -> None:
    """Second-hand anchors of the spec (check 8): DeepSeek-V3, 8,192 sequences of 4,096, as Megatron-Bridge's recipes run it; no row judges these."""
    model, graphs = load_whole("deepseek-v3"), ("attn", "moe_router", "moe_preprocess")
    both = PUBLISHED | {"cp": 1, "micro_batch": 1, "ep": 64, "vpp": 4, "recompute": ("mla_up_proj",)}
    for cluster, gpus, kind, own, stages, published in (
        ("hw-dgx-h100-x8", 1024, "fp8", {"tp": 2, "pp": 8, "system": "deepep"}, "Et|(tt|)*30mL", 368),
        ("hw-gb200-nvl72-x2", 256, "mxfp8", {"tp": 1, "pp": 4, "overlap": "none", "system": "hybrid-ep"}, "Et*3|(t*4|)*14ttmL", 1048),
    ):
        machine = machine_of(load_cluster(cluster))
        training_recipe = TrainingRecipe(dtype=kind, host=True, graphs=graphs)  # type: ignore[arg-type]
        asked = Task(model, gpus, 8192, precision="fp8-moments", training_recipe=training_recipe, spread=0.0)
        planned = Planned(asked, Coster(asked, machine, Space()), None)  # type: ignore[arg-type]
        tflops = planned.speed(planned.coster.cost_of(both | own, -1, stages)) * model_flops(model, 4096, MEGATRON) / 1e12
        print(f"DeepSeek-V3 on {gpus} GPUs of {cluster}: {tflops:.0f} TFLOPS per GPU (published {published})")


def main() -> None:
    """All checks."""
    anchors()
    place()
    depth()
    techniques()
    sibling()


if __name__ == "__main__":
    main()
