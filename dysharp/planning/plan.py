"""`Plan`: the fastest layouts of one model or of several shapes, what limits each, what else would change, and what was not looked at."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dysharp.base import ByName, Columns, ConfigError, GiB, Runner, frozen, here
from dysharp.base import Task as Work
from dysharp.costs import Machine
from dysharp.model import MEGATRON, model_flops, parameters_of
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.names import schedule_of, text_of
from dysharp.planning.refusal import refusal
from dysharp.planning.search import NOT_LOOKED, SearchResult, Tick, Told, first_answer, first_look, journal_of, search
from dysharp.planning.space import Task, default_space
from dysharp.specs import Cluster, WholeModel
from dysharp.training import TrainingRecipe, peak_flops_per_us

ASCEND = "paper-ascend"
NOT_CONSIDERED = (
    "schedules that the framework does not offer (Megatron: all but 1F1B), unless --try names them",
    "degrees of tp, ep and cp that are neither powers of two nor divisors of GPUs and model, and etp on GPUs, unless --try names them",
    "overlap of tensor-parallel communication of MoE models on GPUs", "stages that trade time for memory: layers are split by time alone",
    "stragglers, jitter and failures, which grow with the number of GPUs: measured steps end at 1,024",
)  # fmt: skip


LAYOUTS = Columns(
    "Layout=short", "Memory saved by=saving", "EP=ep", "tokens/s\nper GPU=tokens_per_s_gpu:.0f", "MFU\n%=mfu:.1%", "GiB=memory_GiB:.1f",
    "Behind\n%=behind:.1f", "Limit=limit",
)  # fmt: skip
"""Rows: `Planned.entry`, and words for people."""


@frozen
class Planned:
    """One model with its own best layouts."""

    task: Task
    coster: Coster
    found: SearchResult
    read: int = 0
    """Costs that an earlier search had."""
    second: Costed | None = None
    """The second layout, also where one alone is shown; None: no other fits."""

    def speed(self, one: Costed) -> float:
        """Tokens per second and GPU."""
        return self.task.batch * self.task.sequence / (one.step_us / 1e6) / self.task.gpus

    def mfu(self, one: Costed, cluster: Cluster) -> float:
        """Model FLOPs as Megatron counts them over the dense peak of the GEMMs' type."""
        model = self.task.model
        peak = peak_flops_per_us(cluster, self.coster.training_recipe(one.values).products(model)) * 1e6
        return self.speed(one) * model_flops(model, self.task.sequence, MEGATRON) / peak

    def entry(self, one: Costed, cluster: Cluster) -> ByName:
        """A layout as plain values."""
        offload = list(one.values["offload"])
        entry = {
            "layout": text_of(one), "stages": one.layout.stages, "recompute": list(one.values["recompute"]),
            "offload": offload, "swap": offload, "weights": one.values["weights"], "schedule": schedule_of(one),
            "overlap": one.values["overlap"], "system": one.values["system"], "step_s": one.step_us / 1e6, "tokens_per_s_gpu": self.speed(one),
            "mfu": self.mfu(one, cluster), "memory_GiB": one.peak_bytes / GiB, "memory_left_GiB": (cluster.hbm_bytes - one.peak_bytes) / GiB,
            "limit": one.limit, "shares": {name: us / one.step_us for name, us in one.parts.items()},
        }  # fmt: skip
        return entry | LAYOUTS.more(entry)


@frozen
class Plan:
    """Shapes, the fastest first."""

    cluster: Cluster
    shapes: tuple[Planned, ...]

    @property
    def first(self) -> Planned:
        """The shape whose best layout moves most tokens."""
        return self.shapes[0]

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        shapes = [
            {
                "model": one.task.model.name, "parameters": parameters_of(one.task.model).total,
                "best": [one.entry(x, self.cluster) for x in one.found.best],
                "candidates": one.found.size, "counts": one.found.counts,
            }
            for one in self.shapes
        ]  # fmt: skip
        task = self.first.task
        return {
            "cluster": self.cluster.name, "gpus": task.gpus, "batch": task.batch, "sequence": task.sequence, "precision": task.precision,
            "shapes": shapes, "fidelity": "closed forms", "not_considered": list(NOT_CONSIDERED),
        }  # fmt: skip


def training_recipe_for(model: WholeModel, machine: Machine) -> TrainingRecipe:
    """What frameworks do on a machine: launches take time on packaged GPUs; tensor parallel traffic runs in pieces beside its GEMM for dense models
    (Megatron-Bridge) and on Ascend (MindSpeed, --use-ascend-mc2)."""
    gpu = bool(machine.cluster.gpu)
    return TrainingRecipe(host=gpu, overlap_tp=(gpu and model.layer is None) or machine.cluster.name.startswith(ASCEND))


def framework_for(cluster: Cluster) -> str:
    """The framework whose layouts are searched: MindSpeed on Ascend, Primus on AMD's GPUs, else Megatron."""
    return "mindspeed" if cluster.name.startswith(ASCEND) else "primus" if cluster.gpu.startswith("mi") else "megatron"


def _silent(*_: Any) -> None:
    """No progress."""


@frozen
class Search:
    """How shapes are searched. `folder`: costs are kept there, and a search that was killed goes on. `run`: where shapes are searched.

    `best`: called with lines that say the best layout so far, from a first look on. `quick`: the first look is all.
    """

    n_best: int = 10
    folder: Path | None = None
    run: Runner[Any] = here
    tick: Tick = _silent
    best: Callable[[list[str]], None] | None = None
    quick: bool = False

    def of(self, task: Task, cluster: Cluster, given: dict[str, tuple[Any, ...]], _part: float = 1.0, loud: bool = False) -> Planned:
        """One shape."""
        machine = machine_of(cluster)
        coster = Coster(task, machine, default_space(task, machine, given))
        most = max(10 if self.quick else 2, self.n_best)  # how far the second is behind is part of the answer; a quick look goes on from the best
        told = self._told(task) if loud and not self.quick else None
        if told:
            first_answer(coster, told)
            first_look(coster, 1, told)
        journal = journal_of(self.folder, coster) if self.folder else None
        if self.quick:  # what a look at all values finds, a look at some of them does not miss
            seeds = first_look(Coster(task, machine, default_space(task, machine)), most).best if given else ()
            found = first_look(coster, most, seeds=seeds)
        else:
            found = search(coster, most, journal, tick=self.tick if loud else _silent, told=told)
        if journal is not None:
            journal.flush()
        shown = replace(found, best=found.best[: self.n_best])
        return Planned(task, coster, shown, journal.read if journal is not None else 0, *found.best[1:2])

    def _told(self, task: Task) -> Told | None:
        """What tells `best` of a layout that is faster than all before."""
        fastest, best = [float("inf")], self.best
        if best is None:
            return None

        def told(one: Costed) -> None:
            if one.step_us < fastest[0]:
                fastest[0] = one.step_us
                speed = task.batch * task.sequence / (one.step_us / 1e6) / task.gpus
                best([f"Best so far, by closed forms: {task.model.name}: {text_of(one)}, {speed:.0f} tokens/s per GPU"])

        return told


def plan_shapes(tasks: list[Task], cluster: Cluster, given: dict[str, tuple[Any, ...]], how: Search) -> Plan:
    """The best layouts of every task. Raises `ConfigError` where no task has one, with the constraint that binds and the least change that fits."""
    every = _searched(tasks, cluster, given, how)
    done = [one for one in every if one.found.best]
    if not done and any(NOT_LOOKED in one.found.counts for one in every):
        raise ConfigError("plan: found no layout that fits in a quick look, expected one: search without --quick")
    if not done and len(tasks) == 1:
        raise ConfigError(refusal(tasks[0], cluster, every[0].coster.space, every[0].found))
    if not done:
        where = f"{tasks[0].gpus} GPUs of {cluster.name}"
        raise ConfigError(f"plan: none of {len(tasks)} shapes has a layout that fits {where}; plan one of them for the reason")
    done.sort(key=lambda one: one.found.best[0].step_us)
    return Plan(cluster, tuple(done))


def _searched(tasks: list[Task], cluster: Cluster, given: dict[str, tuple[Any, ...]], how: Search) -> list[Planned]:
    """Every shape, in the order of `tasks`. Several shapes run where `how.run` says."""
    if len(tasks) == 1 or how.run is here:
        return [how.of(task, cluster, given, loud=True) for task in tasks]
    quiet = replace(how, run=here, tick=_silent, best=None)
    work = [Work(task.model.name, partial(quiet.of, task, cluster, given)) for task in tasks]
    results: dict[int, Planned] = {}
    with closing(how.run(work)) as ended:
        for at, result in ended:
            if isinstance(result, Exception):
                raise result
            results[at] = result
            how.tick(len(results), len(tasks), result.task.model.name)
    return [results[at] for at in range(len(tasks))]


def front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Which points no other beats: at least as good in all values (more is better), better in one."""
    return [not any(other != one and all(b >= a for a, b in zip(one, other, strict=True)) for other in points) for one in points]
