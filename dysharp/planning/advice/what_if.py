"""The what-ifs of `advise`: one change each, to the placement, the rows, the software, the switches, the links or the number of GPUs."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from dysharp.analysis import Row
from dysharp.analysis.load import EPLB
from dysharp.base import ByName, Cells, ConfigError, DysharpError, frozen, named
from dysharp.planning.advice.prediction import AdviceRuns, Predicted
from dysharp.runs import KNOB, Job, Workload
from dysharp.specs import Cluster
from dysharp.systems import System, all_systems, get_system

FASTER = 2
NO_COST = "the same transfers; no launches, barriers, rings or SMs are charged to communication"


class _Trial(NamedTuple):
    """One change: its printed name, what it assumes, and the run that simulates it.

    `more_sms`: the same change with the most measured SMs of communication, where fewer were chosen. Faster links may feed more SMs, so
    the faster of both runs counts.
    """

    name: str
    assumes: str
    job: Job
    note: str = ""
    more_sms: Job | None = None


@frozen
class WhatIf:
    """A prediction after one change, compared with the best system at the same tokens per GPU.

    `note`: what changes besides, in a few words. `best_us`: layer time of the best system, by the same estimator.
    """

    change: str
    assumes: str
    predicted: Predicted
    best_us: float
    note: str = ""

    @property
    def speedup(self) -> float:
        """Layer time of the best system over `predicted`."""
        return self.best_us / self.predicted.time_us

    @property
    def difference_us(self) -> float:
        """`predicted` minus the layer time of the best system."""
        return self.predicted.time_us - self.best_us

    @property
    def short(self) -> str:
        """The change in a sentence: "EPLB", "EP4"."""
        return self.change.removesuffix("-style replicas")

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        own = named(self, "change", "assumes", "speedup", "difference_us")
        return own | named(self.predicted.row, "cluster", "gpus") | self.predicted.to_dict()


def what_ifs(runs: AdviceRuns, best: Predicted) -> tuple[tuple[WhatIf, ...], Cells]:
    """Each change alone, compared with the best of the ranking; and {change: why it has no prediction here}."""
    done, trials, left_out = [], *_trials(runs, best)
    tries = [(trial, job) for trial in trials for job in (trial.job, trial.more_sms) if job is not None]
    found: dict[str, Predicted] = {}
    results: list[Predicted | DysharpError] = runs.predict([job for _, job in tries], best.row)
    whole: Predicted | DysharpError = best
    if best.row.window and any(_is_whole(one) for one in results):  # compared with all tokens of the best
        (whole,) = runs.predict([runs.job(best.system, _given(best.row))], dataclasses.replace(best.row, window={}))
    for (trial, _), one in zip(tries, results, strict=True):
        if isinstance(one := whole if isinstance(whole, DysharpError) and _is_whole(one) else one, DysharpError):
            left_out.setdefault(trial.name, str(one))
        elif trial.name not in found or one.time_us < found[trial.name].time_us:
            found[trial.name] = one
    for trial in trials:
        if (predicted := found.get(trial.name)) is None:
            continue
        base = whole if isinstance(whole, Predicted) and _is_whole(predicted) else best
        dropped = get_system(predicted.row.system).costs.drops if predicted.row.form == "paper" else ""
        free = f"; its paper form does not charge: {dropped}" if dropped else ""
        sms = _more_sms(predicted, best) if trial.more_sms else ""
        notes = ", ".join(filter(None, (trial.note, sms)))
        done.append(WhatIf(trial.name, "; ".join(filter(None, (trial.assumes + free, sms))), predicted, base.time_us, notes))
    return tuple(done), {name: why for name, why in left_out.items() if name not in found}


def _is_whole(one: Predicted | DysharpError) -> bool:
    """Whether all tokens ran because fewer did not tell: rows that nobody sends need no estimate."""
    return isinstance(one, Predicted) and not one.row.window and get_system(one.system).moves.sent != "none"


def _more_sms(changed: Predicted, best: Predicted) -> str:
    """The SMs of communication of `changed` where `best` has another number, and what this number alone changes."""
    before, now = int(best.row.options[KNOB]), int(changed.row.options[KNOB])
    alone = f"{best.tried[now] / best.tried[before] - 1:+.1%}".replace("%", " %")
    return f"{now} SMs, which alone bring {alone}" if now != before else ""


def _trials(runs: AdviceRuns, best: Predicted) -> tuple[list[_Trial], Cells]:
    """The changes to simulate; and {change: why no machine can be built for it}."""
    cluster, model = runs.request.cluster, runs.request.model
    name, options = best.row.system, _given(best.row)
    faster = dataclasses.replace(cluster, name=f"{cluster.name}-links-x{FASTER}", link_bytes_per_us=FASTER * cluster.link_bytes_per_us)
    most = options | {KNOB: max(best.tried)} if best.tried and max(best.tried) != options.get(KNOB) else {}

    def machine(trial_name: str, assumes: str, workload: Workload, note: str = "") -> _Trial:
        return _Trial(trial_name, assumes, runs.job(name, options, workload), note, runs.job(name, most, workload) if most else None)

    trials = []
    if not runs.request.placement.startswith(EPLB) and cluster.n_gpus > 1:  # on one GPU a replica takes nothing off another
        assumes = "one more slot per GPU, placed with the load of this batch: the most that replication can bring"
        spread = runs.workload(placement=EPLB)
        note = f"{spread.routing.placement.n_slots} expert slots instead of {runs.workload().routing.placement.n_slots}"
        trials.append(_Trial("EPLB-style replicas", assumes, runs.job(name, options, spread), note))
    if options.get("dispatch") == "rows":
        assumes = "Dispatch sends one byte per value and one FP32 scale per 128 values; numerics change"
        trials.append(_Trial("FP8 rows in Dispatch", assumes, runs.job(name, options | {"dispatch": "fp8"}), "numerics change"))
    left_out: Cells = {}
    for gpus in _sizes(cluster):
        try:
            resized = runs.job(name, options, runs.workload(cluster.with_gpus(gpus)))
        except ConfigError as error:
            left_out[f"EP{gpus}"] = str(error)
            continue
        experts, before = -(-model.n_experts // gpus), -(-model.n_experts // cluster.n_gpus)
        fewer = f"{experts} experts per GPU instead of {before}"
        trials.append(_Trial(f"EP{gpus}", f"same tokens per GPU, {fewer}", resized, fewer))
    declared = sorted((s.shown.change.rank, s.name, s.shown.change, s) for s in all_systems().values() if s.shown.change is not None)
    needs = {name: f"; needs {one.reach.assumes}" * bool(one.reach.assumes and cluster.domains > 1) for _, name, _, one in declared}
    trials += [
        machine(f"links x{FASTER}", "same software constants" + (", same switches" if cluster.n_switches else ""), runs.workload(faster)),
        *_between_domains(runs, machine),
        _Trial("software for free", NO_COST, runs.job(name, options | {"form": "paper"})),
        *(
            _Trial(change.name, change.assumes + needs[other], runs.job(other, _formats(best.row, system)))
            for _, other, change, system in declared
        ),
    ]
    return trials, left_out


def _between_domains(runs: AdviceRuns, machine: Callable[..., _Trial]) -> list[_Trial]:
    """For a cluster of several domains: faster NICs, half as many NICs, and all GPUs in one NVLink domain. `machine`: the Trial of a workload."""
    cluster = runs.request.cluster
    if cluster.scale_out is None or cluster.domains == 1:
        return []
    out = cluster.scale_out

    def nics(name: str, factor: float) -> Workload:
        changed = dataclasses.replace(out, nic_GBps=factor * out.nic_GBps)
        return runs.workload(dataclasses.replace(cluster, name=f"{cluster.name}-{name}", scale_out=changed))

    same = "same software constants, same latency between domains"
    changes = [
        machine(f"NICs x{FASTER}", same, nics(f"nics-x{FASTER}", FASTER)),
        machine("half the NICs", f"half the rails: one NIC for two GPUs, so half the rate for each; {same}", nics("half-the-nics", 0.5)),
    ]
    if not cluster.n_switches:  # more GPUs would need more links each
        return changes
    together = dataclasses.replace(cluster, name=f"{cluster.name}-one-domain", scale_out=None)
    one = "the kernels of one NVLink domain, and their constants"
    return [*changes, machine("one NVLink domain", one, runs.workload(together), f"{cluster.n_gpus} GPUs by NVLink")]


def _formats(row: Row, system: System) -> ByName:
    """Options that give `system` the formats of `row`, so that a comparison shows the change and not the formats."""
    dispatch = row.options.get("dispatch", "rows")
    formats = {"dispatch": dispatch if dispatch in system.moves.formats else "rows", "weights": row.options.get("weights", "model")}
    known = {f.name for f in dataclasses.fields(system.options)}
    return {option: value for option, value in formats.items() if option in known}


def _sizes(cluster: Cluster) -> list[int]:
    """Half and twice the GPUs, where the machine has them."""
    n, most = cluster.n_gpus, cluster.max_gpus or cluster.n_gpus
    return [size for size in (n // 2, 2 * n) if 2 <= size <= most]


def _given(row: Row) -> ByName:
    """Options of a Row as `options_of` takes them: without defaults, because a default may lie outside a choice's range (automatic)."""
    defaults = {f.name: f.default for f in dataclasses.fields(get_system(row.system).options)}
    return {key: value for key, value in row.options.items() if value != defaults[key] or key in ("n_sm", "dispatch")}
