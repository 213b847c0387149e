"""Predictions of serving runs: the run step by step where prefill and decode share GPUs, prompt by prompt where they are disaggregated.

`fastest_layouts`: which measured layout is fastest at a speed per user, and which a prediction would choose. A group holds runs of equal engine
version, model, hardware, precision and lengths with two layouts or more, disaggregated or not. Speed per user is 1 / TPOT; throughput of a GPU is
the users' tokens over time and GPUs, by measured or predicted TTFT and TPOT alike.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.base.values import frozen
from dysharp.costs.machine import machine_of
from dysharp.measured.intervals import Asked, Interval, interval_of
from dysharp.measured.measurements import Unsupported
from dysharp.measured.serving.setting import STEPS, ServeSetting, ServingRow, setting_of, step_setting_of
from dysharp.serving.disaggregated import WorkerPool, run_pools
from dysharp.serving.memory import memory_of
from dysharp.serving.replay.drawn import drawn
from dysharp.serving.replay.fleet import acceptance_of, replay
from dysharp.serving.replay.report import Replay
from dysharp.serving.replay.requests import Requests
from dysharp.serving.step import StepTable, step_time
from dysharp.serving.two_batches import overlapped_us
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import Cluster, load_whole
from dysharp.specs.whole import WholeModel

TPOT, TTFT, LATENCY, STEP = "serving", "serving-ttft", "serving-latency", "serving-step"
SPECULATES = "1.2.0rc6.post3"
"""Engine version whose rows are suspected of speculation: they are predicted and in no bar."""
SINCE = "2026-02"
"""Month from which benchmarks warm up with as many requests as users, so that a TTFT has no graph capture."""
COLD_MS, COLD_USERS = 1000.0, 30
"""A TTFT of seconds with few users, disaggregated, is a cold start."""
FEW_USERS = 4
ENOUGH = 1 << 40
"""Tokens of a KV cache without a limit."""


@frozen
class ServingCase:
    """One row and its prediction in milliseconds; None with a reason in `note`."""

    row: ServingRow
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    note: str = ""
    step_ms: float | None = None

    @property
    def id(self) -> str:
        """Name of the row."""
        return self.row.id

    @property
    def suspected(self) -> bool:
        """Whether the row is in no bar."""
        return SPECULATES in self.row.text("engine_version")

    @property
    def scored(self) -> bool:
        """Whether the row's quality counts."""
        return self.row.text("quality") in ("A", "B", "") and self.row.text("mode") in ("agg", "disagg") and not self.suspected

    def error(self, family: str) -> float | None:
        """Predicted over measured, minus 1, in percent."""
        measured, predicted = self._pair(family)
        return None if measured is None or predicted is None else 100 * (predicted / measured - 1)

    def _pair(self, family: str) -> tuple[float | None, float | None]:
        """Measured and predicted milliseconds."""
        tpot, ttft = ((self.row.numbers[name], mine) for name, mine in (("tpot_ms", self.tpot_ms), ("ttft_ms", self.ttft_ms)))
        if family == STEP:
            return self.row.step_ms, self.step_ms
        if family != LATENCY:
            return tpot if family == TPOT else ttft
        after = self.row.degrees["osl"] - 1
        whole = [None if first is None or each is None else first + after * each for first, each in zip(ttft, tpot, strict=True)]
        return whole[0], whole[1]

    @property
    def warm(self) -> bool:
        """Whether the TTFT is judged: of a recent run that is no cold start."""
        ttft = self.row.numbers["ttft_ms"]
        users = self.row.degrees["concurrency"]
        cold = self.row.text("mode") == "disagg" and ttft is not None and ttft > COLD_MS and users <= COLD_USERS
        return self.scored and self.row.text("measured") >= SINCE and not cold

    @property
    def few(self) -> bool:
        """Whether the TTFT of few users is judged."""
        return self.warm and self.row.degrees["concurrency"] <= FEW_USERS


def predict_row(row: ServingRow, change: Callable[[Cluster], Cluster] | None = None) -> ServingCase:
    """The prediction of one row, on its machine or what `change` makes of it."""
    try:
        if row.fault:
            raise Unsupported(row.fault)
        if row.text("mode") in STEPS:
            replica, batch, overlaps = step_setting_of(row)
            step_us = overlapped_us(replica, batch) if overlaps else step_time(replica, batch).device
            return ServingCase(row, step_ms=step_us / 1e3)
        tpot, ttft = predict_setting(setting_of(row) if change is None else _on(setting_of(row), change))
    except Unsupported as error:
        return ServingCase(row, note=str(error))
    if row.degrees["osl"] == 1:
        return ServingCase(row, ttft_ms=ttft / 1e3, note="osl = 1: no token comes after the first, so there is no TPOT")
    return ServingCase(row, tpot / 1e3, ttft / 1e3)


def _on(setting: ServeSetting, change: Callable[[Cluster], Cluster]) -> ServeSetting:
    """The setting on what `change` makes of its machines."""
    first, second = (r and replace(r, machine=machine_of(change(r.machine.cluster), "serving")) for r in (setting.replica, setting.decode))
    assert first is not None
    return replace(setting, replica=first, decode=second)


def predict_setting(setting: ServeSetting) -> tuple[float, float]:
    """(TPOT, TTFT) in microseconds over all requests of the run."""
    scenario, engine, cold = setting.scenario, setting.engine, 0.0
    if scenario.concurrency > 1 and not setting.median:  # a lone user's prompts are those that warmed the server up
        cold = setting.replica.machine.constants.get(f"serving.{engine.name}_cold_us", 0.0)
    if setting.decode is not None:
        pools = [
            WorkerPool(StepTable(replica, engine, scenario), workers)
            for replica, workers in zip((setting.replica, setting.decode), setting.workers, strict=True)
        ]
        served = run_pools(pools[0], pools[1], scenario, ratio=setting.ratio, rounds=setting.rounds)
        return served.tpot, served.ttft + cold
    done = _replayed(setting)
    tpot, ttft = (float((np.median if setting.median else np.mean)(done.columns[name])) for name in ("tpot", "ttft"))
    return tpot, ttft + cold


def _replayed(setting: ServeSetting) -> Replay:
    """The run, request by request. The engine ran what by its model's context or the memory left by weights does not fit."""
    replica, scenario = setting.replica, setting.scenario
    users, longest = max(1, round(scenario.concurrency)), 2 / (1 + setting.ratio) * (scenario.isl + scenario.osl)
    asked = {"users": users, "n": users * setting.rounds, "ratio": setting.ratio}
    fits = memory_of(replica, setting.engine.beside(replica.layout.dp), scenario.isl, scenario.osl).tokens > longest
    return replay(
        replace(replica, model=replace(replica.model, context=0)), setting.engine, Requests(*drawn(asked, scenario.isl, scenario.osl)),
        acceptance=acceptance_of(scenario.draft_tokens, scenario.accepted), tokens=0 if fits else ENOUGH,
    )  # fmt: skip


KEYS = ("engine", "engine_version", "model", "hardware", "precision")
CLOSE = 0.95
"""A choice that reaches this part of the best measured throughput counts as right."""
FRONT = 3
"""Numbers of users from which the runs of a layout make a front."""
Point = tuple[float, float]
"""(tokens per second of a user, tokens per second of a GPU)."""


def fastest_layouts(cases: Iterable[ServingCase]) -> dict[str, Any]:
    """In how many groups the chosen layout is the best or within 5 % of it.

    | key | counts |
    |---|---|
    | `groups`, `right` | all judged groups |
    | `fronts`, `fronts_right`, `share` | those with two layouts of `FRONT` numbers of users, judged at a speed that both reach: the first measure |
    | `ep_groups`, `ep_right` | those with EP beside tensor parallel experts on as many GPUs |
    """
    groups: dict[tuple[Any, ...], dict[tuple[int, ...], list[ServingCase]]] = {}
    for case in cases:
        if case.scored and case.tpot_ms and case.row.numbers["ttft_ms"]:
            key = (*(case.row.text(name) for name in KEYS), case.row.degrees["isl"], case.row.degrees["osl"])
            groups.setdefault(key, {}).setdefault(_layout(case), []).append(case)
    judged = [(_judge(list(layouts.values())), _ep_beside_tp(layouts.values())) for layouts in groups.values() if len(layouts) > 1]
    fronts = [right for (right, front), _ in judged if front]
    shared = [right for (right, _), beside in judged if beside]
    right = sum(one for (one, _), _ in judged)
    return {
        "groups": len(judged), "right": right, "share": 100 * sum(fronts) / len(fronts) if fronts else None,
        "fronts": len(fronts), "fronts_right": sum(fronts), "ep_groups": len(shared), "ep_right": sum(shared),
    }  # fmt: skip


def _judge(layouts: Sequence[Sequence[ServingCase]]) -> tuple[bool, bool]:
    """(whether the choice is right, whether fronts judged it)."""
    many = [cases for cases in layouts if len({case.row.degrees["concurrency"] for case in cases}) >= FRONT]
    regret = _regret(many) if len(many) > 1 else None
    return (_at_least(layouts) if regret is None else regret) >= CLOSE, regret is not None


def _at_least(layouts: Sequence[Sequence[ServingCase]]) -> float:
    """As `_regret`, of runs at the speed that the slowest layout's fastest run has, or more."""
    pairs = [[(_point(case, measured=True), _point(case, measured=False)) for case in cases] for cases in layouts]
    speed = min(max(real[0] for real, _ in runs) for runs in pairs)
    fast = [[(real[1], said[1]) for real, said in runs if real[0] >= speed] for runs in pairs]
    real, said = ([max(run[n] for run in runs) for runs in fast] for n in (0, 1))
    return real[said.index(max(said))] / max(real)


def _ep_beside_tp(layouts: Iterable[Sequence[ServingCase]]) -> bool:
    kinds: dict[int, set[bool]] = {}
    for cases in layouts:
        row = cases[0].row
        kinds.setdefault(row.degrees["gpus"] or row.degree("tp") * row.degree("attn_dp"), set()).add(row.degree("moe_ep") > 1)
    return any(len(found) > 1 for found in kinds.values())


def _layout(case: ServingCase) -> tuple[int, ...]:
    names = ("tp", "attn_dp", "moe_tp", "moe_ep", "p_workers", "p_tp", "p_attn_dp", "d_workers", "d_tp", "d_attn_dp", "d_moe_ep")
    return tuple(case.row.degree(name) for name in names)


def _regret(layouts: Sequence[Sequence[ServingCase]]) -> float | None:
    """Measured throughput of the chosen layout over the best layout's, at a speed that all layouts reach; None without such a speed."""
    fronts = [([_point(case, measured=True) for case in cases], [_point(case, measured=False) for case in cases]) for cases in layouts]
    low = max(min(user for user, _ in measured) for measured, _ in fronts)
    high = min(max(user for user, _ in measured) for measured, _ in fronts)
    if low > high:
        return None
    speed = math.sqrt(low * high)
    real = [_at(measured, speed) for measured, _ in fronts]
    said = [_at(predicted, speed) for _, predicted in fronts]
    return real[said.index(max(said))] / max(real)


def _point(case: ServingCase, *, measured: bool) -> Point:
    row = case.row
    ttft, tpot = (row.numbers["ttft_ms"], row.numbers["tpot_ms"]) if measured else (case.ttft_ms, case.tpot_ms)
    assert ttft is not None
    assert tpot is not None
    answer = row.degrees["osl"]
    gpus = row.degrees["gpus"] or row.degree("tp") * row.degree("attn_dp")
    return 1e3 / tpot, row.degrees["concurrency"] * answer / ((ttft + answer * tpot) / 1e3) / gpus


def _at(points: Sequence[Point], speed: float) -> float:
    """Throughput at `speed`, on a line through the two nearest points on log axes."""
    ordered = sorted(points)
    if len(ordered) == 1:
        return ordered[0][1]
    at = min(max(1, sum(x < speed for x, _ in ordered)), len(ordered) - 1)
    (x0, y0), (x1, y1) = ordered[at - 1], ordered[at]
    if x0 == x1:
        return max(y0, y1)
    return math.exp(math.log(y0) + math.log(speed / x0) / math.log(x1 / x0) * math.log(y1 / y0))


MODELS = ("deepseek-v3", "qwen3-32b", "minimax-m2.5", "llama3-8b", "qwen3-235b")
GPUS = ("h100-sxm", "h200-sxm", "b200", "gb200")
MOST_EP, MOST_EP_DISAGGREGATED = 8, 32
ISL, OSL = (128, 32768), (100, 8192)
"""Models, GPUs, EP degrees and lengths of the runs that are judged."""


def group_of(replica: Replica, *, disaggregated: bool = False) -> str:
    """The group of measured runs that are most like a point."""
    if replica.model.layer is None:
        return "dense models"
    return "disaggregated" if disaggregated else f"MoE models with {'attention groups' if replica.layout.dp > 1 else 'tensor parallel attention'}"


def served_interval(replica: Replica, ms: float, what: str = "TPOT", *, disaggregated: bool = False) -> Interval:
    """The interval of a TPOT, TTFT or throughput (as GPU milliseconds per token) of `ms`, from the runs that are most like a point."""
    family = f"{what}, {group_of(replica, disaggregated=disaggregated)}"
    return interval_of(Asked("serving", family, replica.machine.gpu.name, 1e3 * ms, replica.model.name))


def intervals_of(case: ServingCase) -> dict[str, Any]:
    """Intervals of the TPOT and the TTFT of a row; None where it has none."""
    found: dict[str, Any] = {}
    setting = None if case.ttft_ms is None else setting_of(case.row)
    for what, value, start in (("TPOT", case.tpot_ms, ""), ("TTFT", case.ttft_ms, "ttft_")):
        if setting is None or value is None or not 0 < value < math.inf:
            found |= {f"{start}interval80": None, f"{start}interval90": None}
        else:
            interval = served_interval(setting.decode or setting.replica, value, what, disaggregated=setting.decode is not None)
            found |= {f"{start}{name}": ends for name, ends in interval.of(value).items()}
    return found


def _shape(model: WholeModel) -> WholeModel:
    """What decides times of a model in any format: not its name, nor where it was read."""
    same: dict[str, Any] = {"name": "model", "source": "", "checkpoint": ""}
    layer = model.layer and replace(model.layer, **same, gemm_dtype="bf16", dispatch_format="rows", routing="uniform", tokens_per_gpu=1)
    return replace(model, **same, layer=layer, context=0, repository="")


def outside_of(replica: Replica, scenario: Scenario, *, disaggregated: bool = False) -> list[str]:
    """What the replica or scenario has and no judged run had, each as "found (measured: ...)"."""
    most, ep = MOST_EP_DISAGGREGATED if disaggregated else MOST_EP, replica.layout.ep
    checks = (
        (_shape(replica.model) in map(_shape, map(load_whole, MODELS)), f"model {replica.model.name} (measured: {', '.join(MODELS)})"),
        (replica.machine.gpu.name in GPUS, f"GPU {replica.machine.gpu.name} (measured: {', '.join(GPUS)})"),
        (ep <= most or replica.layout.dp == 1, f"EP{ep} (measured: up to EP{most})"),
        (ISL[0] <= scenario.isl <= ISL[1], f"ISL {scenario.isl:g} (measured: {ISL[0]} to {ISL[1]:,})"),
        (OSL[0] <= scenario.osl <= OSL[1], f"OSL {scenario.osl:g} (measured: {OSL[0]} to {OSL[1]:,})"),
        (not scenario.draft_tokens, "speculative decoding (no measured run says that it has it)"),
    )
    return [words for inside, words in checks if not inside]
