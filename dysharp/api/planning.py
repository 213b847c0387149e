"""`plan`: the layouts and shapes that train fastest on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from dysharp.errors import ConfigError, nearest
from dysharp.planning.cost import Costed, machine_of
from dysharp.planning.imbalance import SPREAD
from dysharp.planning.plan import NOT_CONSIDERED, Plan, plan_shapes, practice_for, schedule_of, short_of, text_of
from dysharp.planning.space import INTEGERS, Space, Task
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.fields import show
from dysharp.specs.whole import WholeModel
from dysharp.steps import check_layout, layout_of
from dysharp.steps.accounting.parameters import parameters_of
from dysharp.units import GiB

NAMES = {"mbs": "micro_batch"}
SHAPE_KEYS = ("layers", "hidden", "n_experts", "topk", "expert_hidden")


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, with a layout to judge if one was given."""

    plan: Plan
    header: tuple[str, ...]
    checked: Costed | None = None
    HEADINGS: ClassVar[tuple[str, ...]] = ("Layout", "Recompute", "EP", "tokens/s/GPU", "MFU %", "GiB", "Behind %", "Limit")
    SHAPE_HEADINGS: ClassVar[tuple[str, ...]] = ("Shape", "Parameters, B", "tokens/s/GPU", "MFU %", "GiB left", "Own best layout")

    @property
    def not_considered(self) -> tuple[str, ...]:
        """What no candidate has."""
        return NOT_CONSIDERED

    def sentence(self) -> str:
        """The answer."""
        one = self.plan.first
        best = one.found.best[0]
        shape = (
            f"{one.task.model.name} trains fastest of {len(self.plan.shapes)} shapes, with"
            if len(self.plan.shapes) > 1
            else f"{one.task.model.name}:"
        )
        lead = f"; the second layout is {100 * (one.found.best[1].step_us / best.step_us - 1):.1f} % behind" if len(one.found.best) > 1 else ""
        return (
            f"{shape} {text_of(best)} on {one.task.gpus} GPUs of {self.plan.cluster.name}: {one.speed(best):.0f} tokens/s per GPU, MFU "
            f"{100 * one.mfu(best, self.plan.cluster):.1f} %, a step of {best.step_us / 1e6:.2f} s, {best.peak_bytes / GiB:.0f} GiB; "
            f"beside computing most time goes to {best.limit}{lead}. By closed forms, which no measurement has judged."
        )

    def cells(self) -> list[list[str]]:
        """The best layouts."""
        one = self.plan.first
        first = one.found.best[0].step_us
        return [
            [
                short_of(x), " ".join(x.values["recompute"]) or "none", ep_of(x), f"{one.speed(x):.0f}",
                f"{100 * one.mfu(x, self.plan.cluster):.1f}", f"{x.peak_bytes / GiB:.1f}", f"{100 * (x.step_us / first - 1):.1f}", x.limit,
            ]
            for x in one.found.best
        ]  # fmt: skip

    def shape_cells(self) -> list[list[str]]:
        """Every shape with its own best layout."""
        rows = []
        for one in self.plan.shapes:
            x = one.found.best[0]
            left = (self.plan.cluster.hbm_bytes - x.peak_bytes) / GiB
            total = parameters_of(one.task.model).total / 1e9
            mfu = f"{100 * one.mfu(x, self.plan.cluster):.1f}"
            rows.append([one.task.model.name, f"{total:.1f}", f"{one.speed(x):.0f}", mfu, f"{left:.1f}", short_of(x)])
        return rows

    def count_cells(self) -> list[list[str]]:
        """Where every candidate of the first shape went."""
        found = self.plan.first.found
        return [[f"{n:,}", name] for name, n in sorted(found.counts.items(), key=lambda one: -one[1])] + [[f"{found.size:,}", "all"]]

    def verdict(self) -> str:
        """The judgement of a layout that was given."""
        assert self.checked is not None
        one, x = self.plan.first, self.checked
        best = one.found.best[0]
        behind = 100 * (x.step_us / best.step_us - 1)
        fits = "fits" if x.peak_bytes <= one.coster.capacity else f"needs {x.peak_bytes / GiB:.1f} GiB and does not fit"
        place = (
            f"{behind:.1f} % behind {text_of(best)} with {'+'.join(best.values['recompute']) or 'no recomputation'}"
            if behind > 0
            else "no worse than the best of the space"
        )
        return f"{text_of(x)} {fits}: {one.speed(x):.0f} tokens/s per GPU, {place}; beside computing most time goes to {x.limit}."

    def check_cells(self) -> list[list[str]]:
        """Shares of the step of the layout that was given, and of the best."""
        assert self.checked is not None
        best = self.plan.first.found.best[0]
        rows = [[name, f"{us / 1e6:.3f} s", f"{best.parts[name] / 1e6:.3f} s"] for name, us in self.checked.parts.items()]
        return [*rows, ["all", f"{self.checked.step_us / 1e6:.3f} s", f"{best.step_us / 1e6:.3f} s"]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = self.plan.to_dict()
        return found | ({"checked": self.plan.first.entry(self.checked, self.plan.cluster)} if self.checked else {})


def ep_of(one: Costed) -> str:
    """EP system and overlap of a layout in a table."""
    if one.values["ep"] * one.values["etp"] == 1:
        return "-"
    return str(one.values["system"]) + (" overlapped" if one.values["overlap"] == "pair" else "")


def plan(
    models: str, gpus: int, cluster: str = "hw-dgx-h100-x8", *, batch: int | None = None, sequence: int = 4096, precision: str = "bf16",
    imbalance: float | None = None, spread: float = SPREAD, tries: Iterable[str] = (), vary: Iterable[str] = (), n_best: int = 10, check: str | None = None,
) -> Answer:  # fmt: skip
    """The `n_best` fastest layouts of every model (names or files, joined with commas) and shape on `gpus` GPUs.

    `tries`: lists of values per dimension ("tp=1,2"); `vary`: shapes ("layers=61,66"); `check`: a layout to judge. Raises `ConfigError`.
    """
    machine = load_cluster(cluster)
    shapes = [shape for name in models.split(",") for shape in shapes_of(load_whole(name.strip()), list(vary))]
    own = machine_of(machine)
    tasks = [Task(model, gpus, batch or gpus, sequence, precision, practice_for(model, own), spread, imbalance) for model in shapes]
    done = plan_shapes(tasks, machine, given_of(tries), n_best)
    checked = _checked(done, check) if check is not None else None
    header = (
        "Closed forms: GEMMs at the rates of large ones, collectives at link rates, balanced experts, a formula for the pipeline.",
        "EP systems: bytes of the busiest link. in-switch and moe-hub need hardware that nobody sells.",
        f"{machine.name}: {'rates of measured GPUs' if machine.gpu else 'no rows; a part of the peak that GEMMs keep is assumed'}.",
    )
    return Answer(done, header, checked)


def given_of(tries: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Lists of values per dimension of a space. Raises `ConfigError`."""
    given: dict[str, tuple[Any, ...]] = {}
    for text in tries:
        name, _, values = text.partition("=")
        key = NAMES.get(name.strip(), name.strip())
        if key not in Space.__dataclass_fields__:
            raise ConfigError(f"plan: --try {show(text)}: unknown{nearest(key, Space.__dataclass_fields__)}")
        words = [word.strip() for word in values.split(",")]
        if key in INTEGERS:
            given[key] = tuple(_integer(text, word) for word in words)
        elif key == "recompute":
            given[key] = tuple(() if word == "none" else tuple(word.split("+")) for word in words)
        else:
            given[key] = tuple(words)
    return given


def _integer(text: str, word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 0 < len(word) <= 7:
        raise ConfigError(f"plan: {show(text)}: found {show(word)}, expected a positive integer")
    return int(word)


def shapes_of(model: WholeModel, vary: Sequence[str]) -> list[WholeModel]:
    """Every shape of a model: the product of the lists in `vary`. Raises `ConfigError`."""
    lists: dict[str, list[int]] = {}
    for text in vary:
        name, _, values = text.partition("=")
        if name not in SHAPE_KEYS:
            raise ConfigError(f"plan: --vary {show(text)}: unknown{nearest(name, SHAPE_KEYS)}")
        lists[name] = [_integer(text, word.strip()) for word in values.split(",")]
    return [_shape(model, dict(zip(lists, values, strict=True))) for values in product(*lists.values())]


def _shape(model: WholeModel, values: dict[str, int]) -> WholeModel:
    if not values:
        return model
    layer, own = model.layer, dict(values)
    layers, hidden = own.pop("layers", model.n_layers), own.pop("hidden", model.hidden)
    if layer is None and own:
        raise ConfigError(f"plan: --vary: found {', '.join(own)}, expected layers or hidden in a model without experts")
    name = f"{model.name}-" + "-".join(f"{key}{n}" for key, n in values.items())
    if layer is None:
        return replace(model, name=name, dense_layers=layers, hidden=hidden)
    if layers <= model.dense_layers:
        raise ConfigError(f"plan: --vary layers: found {layers}, expected more than the {model.dense_layers} dense layers")
    fields: dict[str, Any] = {**own, "hidden": hidden, "n_layers": layers - model.dense_layers}
    return replace(model, name=name, hidden=hidden, layer=replace(layer, **fields))


def _checked(done: Plan, text: str) -> Costed:
    """A layout of a text. Raises `ConfigError` where it does not fit the model or the number of GPUs."""
    one = done.first
    words = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    own = {key: words.pop(key) for key in ("recompute", "overlap", "system", "schedule") if key in words}
    layout = layout_of(
        ",".join(f"{key}={value}" for key, value in words.items()) + ("" if {"gbs", "m", "ga"} & set(words) else f",gbs={one.task.batch}")
    )
    if layout.gpus != one.task.gpus or layout.global_batch != one.task.batch:
        found = f"found {layout.gpus} GPUs and a batch of {layout.global_batch}"
        raise ConfigError(f"plan: --check: {found}, expected {one.task.gpus} and {one.task.batch}")
    values: dict[str, Any] = {name: getattr(layout, name) for name in INTEGERS}
    values |= {"recompute": (), "schedule": "1f1b", "overlap": "none", "system": "flat"}
    values |= {key: value[0] for key, value in given_of([f"{key}={value}" for key, value in own.items()]).items()}
    Space(**{key: (value,) for key, value in values.items()})
    coster = one.coster
    done_one = coster.cost_of(values, -1, layout.stages)
    check_layout(one.task.model, done_one.layout, one.task.sequence)
    return done_one


__all__ = ["Answer", "plan", "schedule_of"]
