"""`plan`: the layouts and shapes that train fastest on a cluster."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from itertools import product
from math import isinf
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
from pydantic import Field

from dysharp.api.arguments import PlanArgs
from dysharp.api.learning import learned_bar, posterior_of
from dysharp.api.plan_confirm import Confirmed, Ranked, confirm, ranked_by_rows
from dysharp.api.serving import Serving, serve, slo_of
from dysharp.base import ByName, ConfigError, GiB, Runner, Tally, Texts, check_word, frozen, here, in_processes, sentences, show
from dysharp.base.columns import KEPT, SHOWN, Column, Columns, Rows
from dysharp.costs import Machine
from dysharp.measured.intervals import Interval
from dysharp.measured.training.step_time import step_interval
from dysharp.measured.trust import no_rows
from dysharp.model import Formats, check_layout, layout_of, parameters_of, trained
from dysharp.planning.arguments import lines_of
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.experts import SPREAD
from dysharp.planning.names import ep_of, form_of, saving_of, schedule_of, short_of, text_of
from dysharp.planning.plan import LAYOUTS, Plan, Planned, Search, framework_for, front, plan_shapes, training_recipe_for
from dysharp.planning.search import ConstantChange, kept, search, sensitivity
from dysharp.planning.space import INTEGERS, Space, Task, broken_by
from dysharp.runs import default_formats, in_formats, step_formats, takes, with_rows
from dysharp.runs.on_dask import on_dask
from dysharp.specs import Cluster, WholeModel, load_cluster, load_whole
from dysharp.specs.fields import check_value
from dysharp.specs.hf_whole import lines_on
from dysharp.training import CAP_LINE, TrainingRecipe
from dysharp.training.answers import MFU_LINE, MFU_OF_DENSE

Gpus = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]
NAMES = {"mbs": "micro_batch", "swap": "offload"}
WHOLE_KEYS, HEAD_KEYS = ("vocab", "mtp", "shared_hidden", "dense_hidden"), ("heads", "kv_heads")
SHAPE_KEYS = ("layers", "hidden", "n_experts", "topk", "expert_hidden", *WHOLE_KEYS, *HEAD_KEYS)
"""Dimensions of a shape: of the whole, of its experts, of its attention."""


LATER = ("rows", "confirmed", "sensitive", "serve_slo", "what_if", "folder")
"""What follows a search, or needs one."""
SHORT = {"EP communication": "EP comm", "gradients and parameters": "gradients"}
"""Part of a step -> its name in a table."""
ASSUMED = "a part of the peak that GEMMs keep is assumed"
LINKS = "EP systems flat to moe-hub: time from the bytes of the busiest link. in-switch and moe-hub need hardware that nobody sells."
FREE = ("recompute", "offload", "swap", "overlap", "system", "schedule", "weights")
"""What `--check` says of a layout beside its degrees."""
WHAT_IFS = {"in-switch": "DySHARP-class switches", "moe-hub": "MoE-Hub"}
"""EP systems of hardware that nobody sells -> how a table names the hardware."""


@frozen
class Answer:
    """A plan, with a layout to judge if one was given, and what else was asked for."""

    plan: Plan
    header: Texts
    checked: Costed | None = None
    what_ifs: dict[str, Costed] = field(default_factory=dict)
    """{system of `WHAT_IFS`: the best layout of the first shape with it}."""
    ranked: Ranked | None = None
    confirmed: Confirmed | None = None
    moved: tuple[ConstantChange, ...] | None = None
    served: dict[str, Serving] = field(default_factory=dict)
    """{shape: how it serves}."""
    quick: bool = False
    """A few candidates were costed (`search.first_look`), and a search may find a faster layout."""
    learned: Interval | None = None
    """Of the step of the best layout, where rows of this very machine taught its costs."""
    source: str = ""
    """The cluster as it was named."""
    precision: str = ""
    """As it was asked for; "": not."""

    @property
    def interval(self) -> Interval | None:
        """Of the step of the best layout; None on a machine without measured steps."""
        one = self.plan.first
        return self.learned or step_interval(one.task.model, one.found.best[0].layout, one.coster.machine)

    @property
    def error(self) -> tuple[float, float] | None:
        """(median, 90 % of rows) of the measured errors of steps like the best layout, in percent; None on a machine without measured steps."""
        return None if (found := self.interval) is None else (100 * found.typical, found.usual)

    @property
    def lead(self) -> float:
        """How far the second layout is behind, in percent; 0 without a second."""
        one = self.plan.first
        return _behind_of(one.second.step_us, one.found.best[0].step_us) if one.second else 0.0

    def sentence(self) -> str:
        """The answer."""
        one = self.plan.first
        best = one.found.best[0]
        shape = f" trains fastest of {len(self.plan.shapes)} shapes, with" if len(self.plan.shapes) > 1 else ":"
        start = "Quick answer, a few layouts by closed forms; a search may find a faster one. " if self.quick else ""
        return (
            f"{start}{one.task.model.name}{shape} {text_of(best)} on {one.task.gpus} GPUs of {self.plan.cluster.name}: {one.speed(best):.0f} "
            f"tokens/s per GPU, MFU {100 * one.mfu(best, self.plan.cluster):.1f} %, a step of {best.step_us / 1e6:.2f} s, "
            f"{best.peak_bytes / GiB:.0f} GiB; {_rest(best)}. {self.trust()}"
        )

    def trust(self) -> str:
        """What the ranking stands on, and how far first and second are apart in error bars."""
        second = self.plan.first.second
        lead = f"The second layout is {self.lead:.1f} % behind" if second else "No second layout fits"
        if self.error is None:
            return f"{lead}. Times are closed forms; no measured step on this machine checks them."
        median, most = self.error
        bars = f", {self.lead / median:.1f} error bars" if second else ""
        if self.learned:
            return f"{lead}{bars}. {learned_bar(self.learned, self.source)}"
        missed = f"{median:.1f} % (median), {most:.0f} % (90 % of rows)"
        return f"{lead}{bars}. By closed forms, which miss measured steps like this that no fit saw by {missed}."

    def rows(self) -> Rows:
        """Rows of `LAYOUTS`: the best, and the best with hardware that nobody sells."""
        one = self.plan.first
        shown = [(x, "") for x in one.found.best] + [(x, f" ({WHAT_IFS[name]})") for name, x in self.what_ifs.items()]
        return [self._row(one, x) | {"ep": ep_of(x) + hardware, "limit": SHORT.get(x.limit, x.limit)} for x, hardware in shown]

    def _row(self, one: Planned, x: Costed) -> ByName:
        behind = _behind_of(x.step_us, one.found.best[0].step_us)
        return one.entry(x, self.plan.cluster) | {"short": short_of(x), "saving": saving_of(x), "behind": behind}

    def shape_rows(self) -> Rows:
        """Rows of `SHAPES`: every shape with its own best layout."""
        total = {one.task.model.name: parameters_of(one.task.model).total for one in self.plan.shapes}
        rows = [self._row(one, one.found.best[0]) | {"shape": name} for one, name in zip(self.plan.shapes, total, strict=True)]
        points = [(row["tokens_per_s_gpu"], row["memory_left_GiB"], total[row["shape"]]) for row in rows]
        return [row | {"parameters": n, "unbeaten": best} for row, n, best in zip(rows, total.values(), front(points), strict=True)]

    def moved_line(self) -> str:
        """How many changes of a constant make another layout the best."""
        moved = self.moved or ()
        changed = [one for one in moved if one.behind]
        within = [one for one in changed if self.error and one.behind * 100 <= self.error[0]]
        tail = f"; in {len(within)} of these the old one stays within an error bar" if changed and self.error else ""
        return f"{len(changed)} of {len(moved)} changes of a constant by 20 % make another layout the best{tail}."

    def ranked_rows(self) -> Rows:
        """Rows of `RANKED`."""
        assert self.ranked is not None
        pairs = zip(self.ranked.order, self.ranked.steps, strict=True)
        return [{"layout": text_of(x), "short": short_of(x), "closed_us": closed, "rows_us": rows} for x, (closed, rows) in pairs]

    def serving_rows(self) -> Rows:
        """Rows of `SERVED`, the most tokens first."""
        most = {name: one.best[0].tokens_per_gpu if one.best else 0.0 for name, one in self.served.items()}
        told = {name: one.sentences()[0].split(":")[0] for name, one in self.served.items()}
        return [{"shape": name, "tokens": most[name] or "none", "said": told[name]} for name in sorted(most, key=lambda name: -most[name])]

    def arguments(self, framework: str) -> list[str]:
        """The best layout, or the one to judge, as arguments of a framework."""
        return lines_of(framework, self.plan.first.task, self.pasted)

    @property
    def pasted(self) -> Costed:
        """The layout whose arguments are wanted: that to judge, or the best."""
        return self.checked or self.plan.first.found.best[0]

    def count_rows(self) -> Rows:
        """Rows of `COUNTS`: where every candidate of the first shape went."""
        found = self.plan.first.found
        return [{"n": n, "what": what} for what, n in [*sorted(found.counts.items(), key=lambda one: -one[1]), ("all", found.size)]]

    def verdict(self) -> str:
        """The judgement of a layout that was given."""
        assert self.checked is not None
        one, x = self.plan.first, self.checked
        best = one.found.best[0]
        behind = _behind_of(x.step_us, best.step_us)
        fits = "fits" if x.peak_bytes <= one.coster.capacity else f"needs {x.peak_bytes / GiB:.1f} GiB and does not fit"
        place = f"{behind:.1f} % behind {_whole(best)}" if behind > 0 else "no worse than the best of the space"
        return f"{_whole(x)} {fits}: {one.speed(x):.0f} tokens/s per GPU, {place}; {_rest(x)}."

    def check_rows(self) -> Rows:
        """Rows of `CHECKED`."""
        assert self.checked is not None
        parts, best = (one.parts | {"all": one.step_us} for one in (self.checked, self.plan.first.found.best[0]))
        return [{"part": name, "us": us, "best_us": best[name]} for name, us in parts.items()]

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        found, one, cluster = self.plan.to_dict(), self.plan.first, self.plan.cluster
        found |= {"quick": True} if self.quick else {}
        found |= {"step_us_90": list(self.learned.around(one.found.best[0].step_us))} if self.learned else {}
        found |= {"lead_percent": self.lead, "error_percent": self.error, "read": [shape.read for shape in self.plan.shapes]}
        found["formats"] = _formats_of_plan(one).to_dict(one.coster.machine.products)
        if self.checked:
            found["checked"] = one.entry(self.checked, cluster)
        if self.what_ifs:
            found["what_ifs"] = {name: one.entry(x, cluster) for name, x in self.what_ifs.items()}
        if self.ranked:
            found["ranked_by_rows"] = {"order": RANKED.values(self.ranked_rows()), "left_out": self.ranked.left_out}
        if self.confirmed:
            names = ("closed", "replayed", "rows", "merged", "left_out")
            found["confirmed"] = {name: getattr(self.confirmed, name) for name in names}
        if self.moved is not None:
            found["sensitivity"] = MOVED.values(self.moved)
        if self.served:
            found["serving"] = {name: serving.to_dict() for name, serving in self.served.items()}
        return found

    def __str__(self) -> str:
        parts = [sentences(self.verdict() if self.checked else self.sentence()), LAYOUTS.screen(self.rows())]
        if len(self.plan.shapes) > 1:
            parts.append(SHAPES.screen(self.shape_rows()))
        return "\n".join(parts)


def _behind_of(step_us: float, best_us: float) -> float:
    """How many percent of the best layout's tokens/s another one lacks."""
    return 100 * (1 - best_us / step_us)


SHAPES = Columns(
    "Shape=shape", "Parameters, B=parameters/1e9:.1f", "tokens/s/GPU=tokens_per_s_gpu:.0f", "MFU %=mfu:.1%", "GiB left=memory_left_GiB:.1f",
    "Unbeaten=unbeaten:", "Own best layout=short:",
)  # fmt: skip
""""Unbeaten": no other shape has as many tokens/s, as much memory left and as many parameters."""
RANKED = Columns(Column("short", "Layout", place=SHOWN), Column("layout", place=KEPT), "Closed forms, s=closed_us/1e6:.3f", "Rows, s=rows_us/1e6:.3f")
MOVED = Columns(
    "Constant=constant", "Times=factor:g", "Step %=step:+.1%",
    Column("then", "Then the best", of=lambda m: f"{short_of(m.winner)} {saving_of(m.winner)}" if m.behind else "the same", place=SHOWN),
    Column("behind", "Old one behind %", ".1%", lambda m: "does not fit" if isinf(m.behind) else m.behind, place=SHOWN),
    Column("best", of=lambda m: text_of(m.winner), place=KEPT), Column("behind", of=lambda m: None if isinf(m.behind) else m.behind, place=KEPT),
)  # fmt: skip
"""Rows: `Moved`."""
SERVED = Columns("Shape=shape", "served tokens/s/GPU=tokens:,.0f", "Own best layout=said:")
COUNTS = Columns("Candidates=n:,", "What became of them=what")
CHECKED = Columns("Part of the step=part", "This layout, s=us/1e6:.3f", "The best, s=best_us/1e6:.3f")


def _whole(one: Costed) -> str:
    form = form_of(one)
    return f"{text_of(one)} ({form})" if form else text_of(one)


def _rest(one: Costed) -> str:
    """What takes longest besides computing, and its share: where that is near 0, nothing but computing limits."""
    return f"besides computing, most time goes to {one.limit} ({100 * one.parts[one.limit] / one.step_us:.1f} %)"


def _formats_of_plan(one: Planned) -> Formats:
    """The formats of the best layout of a plan. Its closed forms send BF16 rows both ways."""
    task, training_recipe = one.task, one.coster.training_recipe(one.found.best[0].values)
    known = training_recipe.formats or default_formats(training_recipe.products(task.model), task.precision)
    return with_rows(trained(known), None, task.model.layer)


@takes(PlanArgs)
def plan(models: str, gpus: int, cluster: str | Cluster = "hw-dgx-h100-x8", **asked: Unpack[PlanArgs]) -> Answer:
    """The fastest layouts of every model (names or files, joined with commas) and shape on `gpus` GPUs. Raises `ConfigError`."""
    if asked["quick"] and (later := [name for name in LATER if asked[name]]):  # type: ignore[literal-required]
        raise ConfigError(f"plan: quick: found it beside {later[0]}, expected none (it stops before)")
    check_value(gpus, Gpus, "gpus")
    machine = load_cluster(cluster)
    tick, jobs, folder = asked["tick"], asked["jobs"], asked["folder"]
    shapes = [shape for name in models.split(",") for shape in _shapes_of(load_whole(name.strip()), list(asked["vary"]))]
    if any(shape.linear or shape.dense_layers + shape.moe_layers < shape.n_layers for shape in shapes):
        raise ConfigError(f"plan {models}: found linear attention, or dense layers behind experts, expected neither: step takes it")
    if len({shape.name for shape in shapes}) < len(shapes):
        raise ConfigError(f"plan: found {', '.join(shape.name for shape in shapes)}, expected different models and shapes")
    odd = [name for name in ("spread", "imbalance", "what_if") if asked[name] is not None and asked[name] is not False]
    if odd and not any(shape.layer for shape in shapes):
        raise ConfigError(f"plan: {odd[0]}: found it with {models}, which has no experts, expected none")
    own, given = machine_of(machine), _given_of(asked["tries"])
    batch, costs = asked["batch"] or gpus, Path(folder) if folder else None
    loads = SPREAD if asked["spread"] is None else asked["spread"], asked["imbalance"]
    wanted = [_in_formats(model, training_recipe_for(model, own), own, asked["precision"]) for model in shapes]
    if (asked["rows"] or asked["confirmed"]) and wanted[0][1].dtype == "fp4":
        raise ConfigError("plan: precision: found products in fp4, expected bf16, fp8 or mxfp8: simulated layers have no other GEMMs")
    tasks = [
        Task(model, gpus, batch, asked["sequence"], recipe.formats.state if recipe.formats else "bf16", recipe, *loads, framework_for(machine))
        for model, recipe in wanted
    ]
    local: Runner[Any] = here if jobs == 1 else lambda work: in_processes(work, jobs)
    with on_dask(asked["scheduler"]) if asked["scheduler"] else nullcontext(local) as run:
        done = plan_shapes(tasks, machine, given, Search(asked["n_best"], costs, run, tick, asked["show"], asked["quick"]))
    first, best = done.first, done.first.found.best
    own_rows, space, chosen = posterior_of(cluster, "steps"), first.coster.space, best[0]
    at = lambda to: np.log([Coster(first.task, machine_of(to(machine)), space).cost_of(chosen.values, chosen.number).step_us])  # noqa: E731
    slo = None if asked["serve_slo"] is None else slo_of(asked["serve_slo"])
    return Answer(
        done, _header(first, shapes), _checked(done, asked["check"]) if asked["check"] is not None else None,
        _what_ifs(first) if asked["what_if"] and first.task.model.layer else {},
        ranked_by_rows(first.coster, best[: asked["rows"]], tick=tick) if asked["rows"] else None,
        confirm(first.coster, best[0]) if asked["confirmed"] else None,
        tuple(sensitivity(first.coster, machine, best[0], tick)) if asked["sensitive"] else None,
        {model.name: serve(model, machine.with_gpus(own.domain), slo=slo) for model in shapes} if slo is not None else {}, asked["quick"],
        own_rows.interval(at) if own_rows else None, str(cluster), asked["precision"] or "",
    )  # fmt: skip


def _in_formats(model: WholeModel, training_recipe: TrainingRecipe, machine: Machine, precision: str | None) -> tuple[WholeModel, TrainingRecipe]:
    """A shape and its training recipe under a precision. Raises `ConfigError`."""
    formats = step_formats(precision, model, machine)
    for side in ("sent", "back"):
        if getattr(formats, side) not in ("", "bf16"):
            raise ConfigError(f"plan: precision: found {side}={getattr(formats, side)}, expected bf16: closed forms of a plan send BF16 rows")
    return in_formats(model, training_recipe, formats, machine)


def _header(first: Planned, shapes: Iterable[WholeModel]) -> Texts:
    task, machine = first.task, first.coster.machine
    cluster, apart = machine.cluster, task.gpus > machine.domain and not machine.cluster.scale_out
    drawn = f"expert loads spread by {task.spread:g} of their mean, and the hottest rank of an EP group sets the time"
    hot = drawn if task.imbalance is None else f"the hottest rank of an EP group has {task.imbalance:g} times the mean"
    return (
        _formats_of_plan(first).line(task.model, machine.products),
        "Closed forms of `dysharp step`, with a formula for the pipeline that its replay confirms within a few percent.",
        *dict.fromkeys(line for shape in shapes for line in lines_on(shape)),
        *((f"Experts: {hot}.", LINKS) if task.model.layer else ()),
        *((f"Between NVLink domains: assumed {machine.nic / 1000:g} GB/s per GPU.",) if apart else ()),
        CAP_LINE,
        MFU_LINE if task.model.layer else MFU_OF_DENSE,
        f"{cluster.name}: {no_rows(cluster) or 'rates of measured GPUs'}." if cluster.gpu else f"{cluster.name}: no rows; {ASSUMED}.",
    )


def _what_ifs(one: Planned) -> dict[str, Costed]:
    """The best layout of a shape with each hardware of `WHAT_IFS`."""
    bests = ((name, search(Coster(one.task, one.coster.machine, replace(one.coster.space, system=(name,))), 1).best) for name in WHAT_IFS)
    return {name: best[0] for name, best in bests if best}


def _given_of(tries: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Lists of values per dimension of a space. Raises `ConfigError`."""
    given: dict[str, tuple[Any, ...]] = {}
    for text in tries:
        name, _, values = text.partition("=")
        key = NAMES.get(name.strip(), name.strip())
        check_word(key, Space.__dataclass_fields__, f"plan: --try {show(text)}: unknown")
        words = [word.strip() for word in values.split(",")]
        if key in INTEGERS:
            given[key] = tuple(_integer(text, word) for word in words)
        elif key in ("recompute", "offload"):
            given[key] = tuple(() if word == "none" else tuple(word.split("+")) for word in words)
        else:
            given[key] = tuple(words)
    return given


def _integer(text: str, word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 0 < len(word) <= 7:
        raise ConfigError(f"plan: {show(text)}: found {show(word)}, expected an integer from 1 to 9999999")
    return int(word)


def _shapes_of(model: WholeModel, vary: Sequence[str]) -> list[WholeModel]:
    """Every shape of a model: the product of the lists in `vary`. Raises `ConfigError`."""
    lists: dict[str, list[int]] = {}
    for text in vary:
        name, _, values = text.partition("=")
        check_word(name, SHAPE_KEYS, f"plan: --vary {show(text)}: unknown")
        lists[name] = [_integer(text, word.strip()) for word in values.split(",")]
    return [_shape(model, dict(zip(lists, values, strict=True))) for values in product(*lists.values())]


def _shape(model: WholeModel, values: Tally) -> WholeModel:
    if not values:
        return model
    name, own = f"{model.name}-" + "-".join(f"{key}{n}" for key, n in values.items()), dict(values)
    whole: ByName = {key: own.pop(key) for key in WHOLE_KEYS if key in own}
    heads: ByName = {key: own.pop(key) for key in HEAD_KEYS if key in own}
    model = replace(model, attention=replace(model.attention, **heads), **whole)
    layer = model.layer
    layers, hidden = own.pop("layers", model.n_layers), own.pop("hidden", model.hidden)
    if layer is None and own:
        raise ConfigError(f"plan: --vary: found {', '.join(own)}, expected layers or hidden in a model without experts")
    if layer is None:
        return replace(model, name=name, dense_layers=layers, hidden=hidden)
    if layers <= model.dense_layers:
        raise ConfigError(f"plan: --vary layers: found {layers}, expected more than the {model.dense_layers} dense layers")
    fields: ByName = {**own, "hidden": hidden, "n_layers": layers - model.dense_layers}
    return replace(model, name=name, hidden=hidden, layer=replace(layer, **fields))


def _checked(done: Plan, text: str) -> Costed:
    """A layout of a text; what its text leaves out (EP system, overlap, recompute, offload, schedule) is as the search would choose it.

    Raises `ConfigError` where it does not fit the model or the number of GPUs.
    """
    one = done.first
    parts = {part.strip(): part.partition("=")[0].strip() for part in text.split(",") if part.strip()}
    own = _given_of(free := [part for part, name in parts.items() if name in FREE])
    if len(own) < len(free):
        raise ConfigError(f"plan: --check: found {', '.join(free)}, expected each word once")
    for keys, n in ((("dp", "gpus"), one.task.gpus), (("m", "ga", "micro_batches", "gbs"), one.task.batch)):
        if {*parts.values()}.isdisjoint(keys):
            parts[f"{keys[-1]}={n}"] = keys[-1]
    layout = layout_of(",".join(part for part, name in parts.items() if name not in FREE))
    if layout.gpus != one.task.gpus or layout.global_batch != one.task.batch:
        found = f"found {layout.gpus} GPUs and a batch of {layout.global_batch}"
        raise ConfigError(f"plan: --check: {found}, expected {one.task.gpus} and {one.task.batch}")
    values: ByName = {name: getattr(layout, name) for name in INTEGERS}
    if layout.fsdp not in (1, layout.dp * layout.cp):
        raise ConfigError(f"plan: --check: found fsdp={layout.fsdp}, expected 1, or the {layout.dp * layout.cp} ranks of dp x cp")
    values |= {"weights": "sharded" if layout.fsdp > 1 else "whole"}
    values |= {key: value[0] for key, value in own.items()}
    coster = one.coster
    space = Space(**{key: (values[key],) if key in values else listed for key, listed in coster.space.lists.items()})
    done_one = _fastest_form(Coster(one.task, coster.machine, space), layout.stages)
    if done_one is None:
        firsts = replace(space, **{key: listed[:1] for key, listed in space.lists.items()})
        broken = next(broken_by(one.task, firsts, coster.machine))
        raise ConfigError(f"plan: --check {show(text)}: found a layout that breaks a constraint, expected: {broken}")
    check_layout(one.task.model, done_one.layout, one.task.sequence)
    return done_one


def _fastest_form(coster: Coster, stages: str) -> Costed | None:
    """The fastest candidate that fits, with the layers of `stages` if given; the smallest where none fits; None where all break a constraint."""
    every = [coster.cost_of(coster.space.candidate(int(number)), -1, stages) for numbers, _ in kept(coster) for number in numbers]
    fit = [one for one in every if one.peak_bytes <= coster.capacity]
    return min(fit, key=lambda one: one.step_us) if fit else min(every, key=lambda one: one.peak_bytes, default=None)


__all__ = ["SPREAD", "Answer", "plan", "schedule_of"]
