"""Layouts of experts against the planner, by its own cost: `python bench/plan_layouts.py` prints both tables and the two bars.

A recipe is one (model, GPU, GPUs, batch, sequence, precision, layout, recomputation) of the packaged training rows. The planner searches all
degrees, micro-batches and recompute sets by the rules of its framework (NeMo 24.07: equal chunks), with the dispatcher, graphs, sharding and EP
overlap of its newest row, and balanced routing, as the rows have it; with `--fsdp` also sharded weights, where its framework offers them (longer).
An error bar is the median error of measured steps like the recipe. A pair has one source, release, model, GPU, number of GPUs, sequence and
precision, the same batch or the same micro-batches, and different layouts whose tokens/s per GPU differ by more than 10 %.
"""

import sys
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, permutations

from dysharp.base.units import GiB
from dysharp.costs.machine import Machine
from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.setting import Setting, TrainingRow, machine_of, setting_of, training_recipe_of
from dysharp.measured.training.step_time import measured_s, step_interval
from dysharp.planning.cost import Costed, Coster
from dysharp.planning.names import saving_of, short_of
from dysharp.planning.search import search
from dysharp.planning.space import WEIGHTS, Space, Task, default_space
from dysharp.training.recipe import TrainingRecipe

SWEEPS = ("MooreThreads/SimuMax",)
PAIRED = tuple(f"tr{n}" for n in (*range(515, 521), *range(523, 530)))
"""Sources and rows (pairs in Megatron-Bridge's skills) that measure several layouts of one thing: nobody chose them."""
NEAR, APART = 5.0, 10.0
"""Percent: a recipe this near to the best counts; pairs at least this far apart count."""
LEAST_RISE = 0.03
"""Change of tokens/s, and of a part of the step, that counts as seen in two rows."""
NEMO = "NVIDIA/NeMo@"
FSDP = "--fsdp"
UNEXPLAINED = 1.5
"""Counted memory over that of the GPU beyond which a row keeps less than is counted (layers offloaded to the CPU)."""
LEAN = ("fp8-moments", "fp8-primary", "bf16-moments", "bf16-gradients")
"""States that are tried where the row's own does not fit: rows do not name theirs."""


@dataclass(frozen=True, eq=False)
class Case:
    """A row as a task of the planner, and its layout as a candidate."""

    row: TrainingRow
    setting: Setting
    machine: Machine
    training_recipe: TrainingRecipe
    coster: Coster
    own: Costed

    @property
    def recipe(self) -> tuple[object, ...]:
        """What two rows of one recipe share."""
        s = self.setting
        return s.model.name, self.row.text("hardware").removeprefix("DGX-"), s.layout, s.sequence, s.recipe.name, self.own.values["recompute"]

    @property
    def bars(self) -> tuple[float, float]:
        """(median, 90 % of rows) of the errors of measured steps like this, in percent."""
        found = step_interval(self.setting.model, self.setting.layout, self.machine)
        return (0.0, 0.0) if found is None else (100 * found.typical, found.usual)

    @property
    def alike(self) -> tuple[object, ...]:
        """What two rows share whose difference a part of the step can explain: both measured in one unit."""
        return self.setting.model.name, self.setting.sequence, self.training_recipe.dtype, measured_s(self.row) is None

    @property
    def purpose(self) -> tuple[object, ...]:
        """What two recipes share of which the newer replaces the older."""
        s, text = self.setting, self.row.text
        return (
            s.model.name.removesuffix("-mtp"),
            text("source"),
            text("hardware").removeprefix("DGX-"),
            s.layout.gpus,
            s.sequence,
            self.training_recipe.dtype,
        )

    @property
    def tokens(self) -> float:
        """Measured tokens per second and GPU; TFLOPS where a row has nothing else (pairs have one model)."""
        seconds = measured_s(self.row)
        if seconds is None:
            return self.row.numbers["tflops_gpu"] or 0.0
        return self.setting.layout.global_batch * self.setting.sequence / seconds / self.setting.layout.gpus


def case_of(row: TrainingRow) -> Case:
    """Raises `Unsupported` where the cost does not cover the row."""
    setting = setting_of(row)
    gpu, machine = machine_of(row)
    if row.text("precision").lower() == "nvfp4":
        raise Unsupported("no measured rate of training GEMMs in FP4")
    if not (measured_s(row) or row.numbers["tflops_gpu"]):
        raise Unsupported("no measured time")
    if row.text("check"):
        raise Unsupported("the row contradicts itself")
    training_recipe = training_recipe_of(row, gpu, setting.model.layer is not None)
    layout = setting.layout
    task = Task(
        setting.model, layout.gpus, layout.global_batch, setting.sequence, setting.recipe.name, replace(training_recipe, recompute=()), 0.0,
        framework="nemo-24.07" if row.text("source").startswith(NEMO) else "megatron",
    )  # fmt: skip
    values = {name: getattr(layout, name) for name in ("tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch")}
    overlap = "pair" if training_recipe.overlap_ep and (layout.vpp > 1 or layout.pp == 1) else "none"
    values |= {"recompute": training_recipe.recompute, "offload": (), "weights": WEIGHTS[layout.fsdp > 1]}
    values |= {"schedule": "1f1b", "overlap": overlap, "system": training_recipe.dispatcher or "flat"}
    for recipe in (setting.recipe.name, *LEAN):
        coster = Coster(replace(task, precision=recipe), machine, space_of(task, machine, values))
        own = coster.cost_of(values, -1, layout.stages or equal(setting))
        if own.peak_bytes <= coster.capacity:
            break
    if own.peak_bytes > UNEXPLAINED * machine.cluster.hbm_bytes:
        raise Unsupported("its memory is not counted: it ran, and by the count needs more than 1.5 times its GPU")
    coster.capacity = max(coster.capacity, own.peak_bytes)  # it ran
    return Case(row, setting, machine, training_recipe, coster, own)


def equal(setting: Setting) -> str:
    """Equal chunks as a layout string."""
    model, chunks = setting.model, setting.layout.chunks
    each = model.n_layers // chunks
    pieces = [f"t*{each}"] * chunks
    return "|".join(pieces).join(("E", "m" * model.mtp + "L"))


def space_of(task: Task, machine: Machine, values: dict[str, object]) -> Space:
    """All degrees, micro-batches and recompute sets, with the dispatcher, the overlap and no offload."""
    overlaps = ("none", "pair") if values["overlap"] == "pair" else ("none",)
    base = default_space(task, machine, {name: (values[name],) for name in ("system", "offload")} | {"overlap": overlaps})
    base = base if FSDP in sys.argv else replace(base, weights=(values["weights"],))
    own = {name: (*getattr(base, name), values[name]) for name in ("tp", "pp", "vpp", "ep", "cp", "micro_batch", "recompute", "weights")}
    return replace(base, **{name: tuple(dict.fromkeys(some)) for name, some in own.items()})


def fine(case: Case, one: Costed) -> dict[str, float]:
    """Microseconds of a step by part, computing by piece of a layer (means over ranks)."""
    pieces, letters = case.coster.pieces(one.values), case.coster.letters()
    parts = {name: us for name, us in one.parts.items() if name not in ("computing", "launches", "EP communication", "collectives")}
    for letter in letters:
        for name, us in pieces.merged[letter].parts.items():
            term = "EP communication" if name in ("dispatch and combine", "hidden") else name
            parts[term] = parts.get(term, 0.0) + us * one.layout.micro_batches / one.layout.pp
    return parts


def deciding(case: Case, best: Costed, cases: list[Case]) -> str:
    """The part of the step in which the best saves most, and the measured rows that show it."""
    before, after = fine(case, case.own), fine(case, best)
    name = max(before, key=lambda part: before[part] - after.get(part, 0.0))
    saved = 100 * (before[name] - after.get(name, 0.0)) / case.own.step_us
    return f"{name}: {saved:.1f} % of the step ({support(case, name, cases)})"


def support(case: Case, name: str, cases: list[Case]) -> str:
    """Two measured rows on one GPU between which this part falls and tokens/s rise.

    First come pairs of which the part brings most of the predicted gain ("a part": it does not), then rows of the same architecture and model,
    then pairs by the part's share in the predicted gain.
    """
    found = []
    for a, b in permutations(cases, 2):
        if any(
            of(a) != of(b)
            for of in (lambda x: x.setting.model.name, lambda x: x.setting.sequence, lambda x: x.machine, lambda x: x.training_recipe.dtype)
        ):
            continue
        if bool(measured_s(a.row)) != bool(measured_s(b.row)):
            continue
        gain, fall = per_token(a) - per_token(b), per_token(a, name) - per_token(b, name)
        rise = b.tokens / a.tokens - 1
        if gain > 0 and rise > LEAST_RISE and fall > LEAST_RISE * per_token(a):
            near = fall > gain / 2, a.machine.arch == case.machine.arch, a.setting.model.name == case.setting.model.name
            where = ("" if near[0] else ", a part") + ("" if near[1] else f" on {a.row.text('hardware').removeprefix('DGX-')}")
            text = f"{a.row.id} to {b.row.id}{where}: -{100 * fall / per_token(a):.0f} %, measured {100 * rise:+.0f} %"
            found.append((near, min(fall / gain, gain / fall), text))
    return max(found)[2] if found else "no two rows show it"


@cache
def per_token(case: Case, name: str = "") -> float:
    """GPU microseconds of a token by the cost, or those of one part."""
    us = fine(case, case.own).get(name, 0.0) if name else case.own.step_us
    return us * case.setting.layout.gpus / (case.setting.layout.global_batch * case.setting.sequence)


def experts(cases: list[Case]) -> None:
    """Every recipe beside the best of its space: the term that decides, rows that show it, and the recipe of the same source that came later."""
    chosen = [case for case in cases if not case.row.text("source").startswith(SWEEPS) and case.row.id not in PAIRED]
    newest = {case.recipe: case for case in sorted(chosen, key=lambda one: one.row.text("software"))}
    near, within, terms = 0, [0, 0], []
    print("| row | recipe | tokens/s/GPU: cost, measured | the planner's best | behind % | error bars | term that decides, rows | replaced by |")
    print("|---|---|---|---|---|---|---|---|")
    for case in newest.values():
        best, setting = search(case.coster, 1).best[0], case.setting
        behind = max(0.0, 100 * (case.own.step_us / best.step_us - 1))
        near += behind <= NEAR
        within = [n + (behind <= max(NEAR, bar)) for n, bar in zip(within, case.bars, strict=True)]
        about = f"{setting.model.name}, {setting.layout.gpus} {case.row.text('hardware').removeprefix('DGX-')}, {case.training_recipe.dtype}"
        cost = setting.layout.global_batch * setting.sequence / (case.own.step_us / 1e6) / setting.layout.gpus
        shown = f"{short_of(best)} {saving_of(best)} {best.peak_bytes / GiB:.0f} GiB" if behind else "the same"
        own = f"{short_of(case.own)} {saving_of(case.own)} {case.own.peak_bytes / GiB:.0f} GiB"
        terms.append(deciding(case, best, cases) if behind > NEAR else "")
        bars = f"{behind / case.bars[0]:.1f} of {case.bars[0]:g} %"
        print(
            f"| {case.row.id} | {about}: {own} | {cost:.0f}, {case.tokens:.0f} | {shown} | {behind:.1f} | {bars} | {terms[-1]} "
            f"| {replaced(case, list(newest.values()))} |", flush=True,
        )  # fmt: skip
    named = sum("no two rows" not in term for term in terms if term)
    print(f"terms: {named} of {sum(map(bool, terms))} recipes that are not within {NEAR:g} % have two measured rows that show their term")
    print(f"within {NEAR:g} % or one error bar (median, 90 % of rows): {within[0]}, {within[1]} of {len(newest)}")
    print(f"experts: {near} of {len(newest)} recipes within {NEAR:g} % of the planner's best ({100 * near / len(newest):.0f} %, bar 80)")


def replaced(case: Case, newest: list[Case]) -> str:
    """The last recipe that came after this one for the same purpose, and how much faster it is: measured, by the cost."""
    last = max((one for one in newest if one.purpose == case.purpose), key=lambda one: one.row.text("software"))
    if last.row.text("software") == case.row.text("software"):
        return ""
    return f"{last.row.id}: {100 * (last.tokens / case.tokens - 1):+.0f}, {100 * (per_token(case) / per_token(last) - 1):+.0f} %"


def pairs(cases: list[Case]) -> None:
    """Order of matched pairs."""
    right = counted = 0
    print("\n| rows | layouts | measured % | cost % | order |\n|---|---|---|---|---|")
    for a, b in combinations(cases, 2):
        if not matched(a, b):
            continue
        measured, cost = 100 * (b.tokens / a.tokens - 1), 100 * (speed(b) / speed(a) - 1)
        if max(a.tokens, b.tokens) / min(a.tokens, b.tokens) - 1 <= APART / 100:
            continue
        counted += 1
        right += measured * cost > 0
        order = "right" if measured * cost > 0 else "wrong"
        ways = " -> ".join(f"{short_of(x.own)} {'+'.join(x.own.values['recompute'])}".strip() for x in (a, b))
        print(f"| {a.row.id}, {b.row.id} | {a.setting.model.name}: {ways} | {measured:+.1f} | {cost:+.1f} | {order} |")
    print(f"pairs: {right} of {counted} in the right order ({100 * right / max(counted, 1):.0f} %, bar 90)")


def speed(case: Case) -> float:
    """Tokens per microsecond by the planner's cost."""
    return case.setting.layout.global_batch * case.setting.sequence / case.own.step_us


def matched(a: Case, b: Case) -> bool:
    """Whether two rows differ in nothing but their layout."""
    texts = all(a.row.text(name) == b.row.text(name) for name in ("source", "software", "model", "hardware", "precision"))
    counts = all(a.row.degree(name) == b.row.degree(name) for name in ("gpus", "seq", "layers"))
    batch = a.row.degree("gbs") == b.row.degree("gbs") or a.row.degree("ga") == b.row.degree("ga")
    return texts and counts and batch and (a.setting.layout != b.setting.layout or a.own.values != b.own.values)


def main() -> None:
    """Both tables. With row ids as arguments, only those."""
    cases, left_out, asked = [], {}, set(sys.argv[1:]) - {FSDP}
    for row in TrainingRow.read():
        if asked and row.id not in asked:
            continue
        try:
            cases.append(case_of(row))
        except Unsupported as reason:
            left_out[row.id] = str(reason)
    experts(cases)
    pairs(cases)
    print(f"\nnot covered: {len(left_out)} rows")
    for why in dict.fromkeys(left_out.values()):
        names = [name for name, own in left_out.items() if own == why]
        print(f"- {why}: {len(names)} ({names[0]} ...)")


if __name__ == "__main__":
    main()
