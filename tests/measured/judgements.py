"""Regression values of what is made of predictions: tables of errors, bars, error bars, fits, hold-outs, and runs of serving and training.

Predictions are made up from the measured values, so nothing is simulated.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.base.arrays import F64
from dysharp.base.errors import DysharpError
from dysharp.measured import beyond, calls, cluster_fit, hold_out, left_out, refit, regime, summary, trust, validation
from dysharp.measured.expert_loads import busiest_rank, expert_loads
from dysharp.measured.families.library_calls import LIBRARIES, CallCase, call_us
from dysharp.measured.family import Classified, Parsed, all_families, classify, family_of, judges_outside_bars
from dysharp.measured.fitting import Free, fit, seen_by, spread_of, standard_errors
from dysharp.measured.measurements import Measurement, Unsupported, gpu_of, nic_GBps, out_of_scope, read_calls, read_measurements, read_operators
from dysharp.measured.predictions import ClosedForms, measured_values
from dysharp.measured.serving import predictions as served
from dysharp.measured.serving import setting as serving
from dysharp.measured.training import families as training
from dysharp.measured.training import setting as run_setting
from dysharp.measured.training import step_time
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_model, load_whole
from dysharp.specs.fitted import Fitted, fitted, fitted_values
from dysharp.specs.gpu import list_gpus
from dysharp.workload import make_routing
from tests.measured import outcomes
from tests.measured.csv_lines import ep_line, some_gemms
from tests.measured.csv_lines import read as read_lines
from tests.stored_values import Cases, Row, Table, checksum

FITS = ("fits", "refits", "held out", "nodes", "beyond", "clusters")
"""Where a search ends depends on the last digits."""
STORED = Table(__file__, close=1e-8, zero=1e-8, loose=dict.fromkeys(FITS, 1e-5))
Named = Iterator[Row]


def told(make: Callable[[], Any]) -> Any:
    """What is made, or why not."""
    try:
        return make()
    except (Unsupported, DysharpError) as reason:
        return str(reason)


# ---- measurements


@functools.cache
def measurements() -> tuple[Measurement, ...]:
    """All packaged ones."""
    return (*read_measurements(), *read_operators(), *read_calls())


@functools.cache
def classified() -> Classified:
    """The measurements of the table of outcomes, and more of those that some rules choose."""
    ids = {m.id for own in outcomes.known().values() for m in own}
    eager = [m for m in measurements() if str(m.config.get("timing", "")).startswith("eager") and m.kind.startswith("gemm")][::9]
    trips = [m for m in measurements() if m.kind == "ep_roundtrip"][::6]
    layers = [m for m in measurements() if m.kind.startswith("moe_layer") and "weak" in str(m.config).lower()][:6]
    return classify({m.id: m for m in (*(m for m in measurements() if m.id in ids), *eager, *trips, *layers)}.values())


def made_up(parsed: Sequence[Parsed], part: float = 0.2) -> F64:
    """Predictions near the measured values."""
    found: F64 = measured_values(parsed) * (1 + part * np.sin(1.0 + np.arange(len(parsed))))
    return found


def scopes() -> Named:
    """What machines and regimes measurements have, by kind."""
    groups: dict[str, list[Any]] = {}
    for m in measurements()[::2]:
        groups.setdefault(m.kind, []).append((out_of_scope(m), regime.regime_of(m), left_out._is_host_bound(m), told(partial(gpu_of, m))))
    yield from groups.items()
    yield "NICs", [told(partial(nic_GBps, gpu)) for gpu in list_gpus()]
    yield "regimes of families", {name: one.regime for name, one in all_families().items()}
    yield "apart", {name: [one.name for one in judges_outside_bars(name, n)] for name in ("mori", "hybrid-ep", "deepep") for n in (1, 2)}


def tables() -> Named:
    """The report of `validate` on made-up predictions."""
    own = classified().in_bars()
    predicted = made_up(own.parsed)
    held = hold_out.hold_out_table(own.parsed, predicted, made_up(own.parsed, 0.3), "shape")
    for by in ("shape", "gpu"):
        yield f"hold-out {by}", hold_out.hold_out_table(own.parsed, predicted, made_up(own.parsed, 0.3), by)
        yield f"folds {by}", hold_out.folds([hold_out.label_of(entry, by) for entry in own.parsed], by)
    done = validation.validate_measurements(own, fitted(), predicted, held)
    yield from done.to_dict().items()
    yield "rest", (done.points, done.holds, validation.by_reason(done.unsupported))
    yield "summary", summary.summarise(own.parsed, predicted, made_up(own.parsed, 0.3))


def left_out_of_bars() -> Named:
    """Families beyond the bars, groups that are left out of the bars, hosts, simulators, sources."""
    every = classified()
    far = every.beyond_bars()
    rows = beyond.beyond_errors(far, fitted_values(), predicted=made_up(far.parsed))
    for name in dict.fromkeys(row["family"] for row in rows):
        yield name, [row for row in rows if row["family"] == name]
    yield "bars", [validation.beyond_bars(found, fitted(), ({"by": "nodes", "ratio": 1.2},)) for found in (rows, [])]
    yield "simulators", beyond.beside_simulators(every.parsed, made_up(every.parsed), measured_values(every.parsed))
    yield "sources", beyond.disagreements(every.parsed)
    yield (
        "groups",
        [(left_out.group_of(entry, fitted_values()), left_out.part_of(entry, fitted_values()), entry.measured_us) for entry in every.parsed],
    )
    judged, _ = left_out.split(every, fitted_values())
    yield "split", [len(judged.parsed), [(one.reason, one.counted) for one in judged.missing]]
    yield "left out of the bars", left_out.left_out_errors(every, fitted_values(), made_up(every.parsed))
    yield "hosts", left_out.read_hosts(every.parsed, fitted_values())


def library_calls() -> Named:
    """Calls by regime, their order and bars, what fits a time better, times by hand."""
    entries = [entry for entry in classified().parsed if isinstance(entry.case, CallCase)]
    for part in (0.1, 0.5):
        predicted = made_up(entries, part)
        yield f"{part:g}", (calls.call_errors(entries, predicted), calls.order(entries, predicted), calls.bars(entries, predicted))
    cases = [entry.case for entry in entries if isinstance(entry.case, CallCase)]
    yield "errors", [calls.interval_of_call(case, 100.0) for case in cases]
    for (library, mode), call in LIBRARIES.items():
        grid = itertools.product(("dispatch", "combine", "roundtrip"), ("drained", "chained", "graph"), (1, 2), ("h100-sxm", "gb200"))
        own = [replace(cases[0], library=library, mode=mode, verb=v, regime=r, nodes=n, gpu=gpu, fp8=n == 1) for v, r, n, gpu in grid]
        yield f"{library} {mode}", [call_us(case, fitted_values(), call, *times) for case in own for times in ((20.0, 30.0), (900.0, 70.0))]


def error_bars() -> Named:
    """Error bars and warnings of systems on machines, near and outside the measured ranges."""
    model = load_model("deepseek-v3")
    shares = {"dispatch": 0.21, "gemm1": 0.3, "gemm2": 0.17, "combine": 0.22, "other": 0.1}
    machines = ("hw-dgx-h100", "hw-dgx-h100-x2", "hw-dgx-b200", "hw-gb200-nvl72", "hw-mi300x", "hw-dgx-h200-x4", "paper-dgx-h100", "hw-hgx-b300")
    options: tuple[dict[str, Any], ...] = ({"form": "real"}, {"form": "real", "n_sm": 24, "dispatch": "fp8"}, {"form": "paper"})
    for name in ("deepep", "deepep-ll", "megamoe", "trtllm-a2a", "hybrid-ep", "mori", "megatron-a2a", "dysharp"):
        found = []
        for cluster, own, tokens in itertools.product(map(load_cluster, machines), options, (1, 128, 4096, 60000)):
            scope = trust.PredictionScope(name, model, cluster, tokens, "fwd" if tokens > 1 else "bwd", own)
            found.append((trust.trust_of(scope, shares), trust.whole_layers(scope) is None, scope.numbers))
        yield name, found
        ranges = itertools.product(("tokens", "sms", "hidden", "gpus"), ("h100-sxm", "b200", "h20"), (1, 2))
        yield f"range {name}", [trust.measured_range(name, word, gpu, domains) for word, gpu, domains in ranges]
    every = [load_cluster(name) for name in machines]
    changed = [replace(every[0], hbm_bytes_per_us=one) for one in (3350 * 1000, 3384 * 1000, 2000 * 1000)]
    yield "machines", [(trust.no_rows(c), trust.departures(c), trust._net_departures(c)) for c in (*every, *changed) if c.gpu]
    for spec in ("uniform", "lognormal:1.0"):
        routing = make_routing(spec, model, 8, 64)
        yield spec, trust.warnings_of(trust.PredictionScope("deepep", model, every[0], 64, options=options[1], routing=routing))


def fits() -> Named:
    """Fits of made-up measurements, and of the constants of one cluster."""
    x = np.arange(1.0, 12.0)
    law: Callable[[Any], np.ndarray] = lambda v: v["a"] + v["b"] * x  # noqa: E731
    target = 3.0 + 2.0 * x
    target[5] *= 1.6
    free = [Free("a", 1.0, 0.5, 9.0), Free("b", 1.0, 0.5, 1.9)]
    for weights in (None, 1.0 / x):
        yield f"fit {weights is None}", fit(free, {"c": 1.0}, law, target, weights=weights)
    yield "fit of few rounds", fit(free[:1], {"b": 2.0}, law, target, rounds=2)
    yield (
        "seen",
        (seen_by(["a", "b"], {"a": 0.3, "b": 2.0}, law), spread_of(x / 50), spread_of(0 * x), standard_errors(np.stack([x, x**2], axis=1), 0.1)),
    )
    yield "start", (refit.neutral(fitted()), refit.stages(fitted()), refit.family_shares(classified().parsed))


def few() -> dict[str, Fitted]:
    """All constants, of which few may move."""
    free = ("gpu.kernel_us", "hopper.bf16_sustained", "blackwell.bf16_sustained", "link.fraction")
    return {name: c if name in free else replace(c, stage=refit.GIVEN) for name, c in fitted().items()}


def refits() -> Named:
    """The fit of constants that few measurements see."""
    parsed = classify(some_gemms()).parsed
    for name, rest in (("neutral", None), ("kept", fitted_values())):
        found = refit.refit(parsed, few(), np.arange(len(parsed)) % 4 > 0, np.linspace(1.0, 1.1, len(parsed)), rest)
        yield name, (found.values, found.borrowed)
    overall = {"macro_median_ape": 1.1, "macro_p90_ape": 2.2, "coverage": 90.0, "n_numbers": 7}
    ratios = [{"family": name, "by": "x", "ratio": 1.5 if name == "macro" else 3.0} for name in ("macro", "nccl")]
    parts = [{"part": part, "median_ape": 8.0, "p90_ape": 20.0} for part in ("device", "host")]
    yield "bars", [validation._check_bars(overall, found, ratios, parts) for found in ([{"median_ape": 12.0}, {"median_ape": 3.0}], [])]
    yield "chosen", [hold_out._sample(classified().parsed, np.arange(len(classified().parsed)) % 3 > 0)]


def by_forms(parsed: Sequence[Parsed], folds: Sequence[tuple[np.ndarray, Any]], *_: Any) -> np.ndarray:
    """In place of `predict_folds`: closed forms, a little larger where Programs predict."""
    found = np.full(len(parsed), np.nan)
    larger = np.array([1.07 if entry.family.program_us else 1.0 for entry in parsed])
    for mask, values in folds:
        found[mask] = (ClosedForms(parsed).values(values) * larger)[mask]
    return found


def held_out() -> Named:
    """Shapes and GPUs that are held out, Programs by closed forms."""
    parsed = classify([*some_gemms()[::3], *read_lines(*(ep_line(f"d-{n}", n, hidden=h) for h, n in ((512, 8), (1024, 16))))]).parsed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold_out, "predict_folds", by_forms)
        for by in ("shape", "gpu"):
            found = hold_out.held_out(parsed, few(), by)
            yield by, (found.predicted, found.borrowed)


def nodes() -> Named:
    """Numbers of nodes that are held out."""
    far = [m for m in measurements() if m.kind.startswith("ep_") and "proto" in m.config]
    far = [m for m in far if family_of(m) == all_families()[hold_out.FAMILY]][::14]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold_out, "predict_folds", by_forms)
        yield "table", hold_out.hold_out_nodes(classify(far).parsed, fitted())
        yield "one number", hold_out.hold_out_nodes(classify(far[:1]).parsed, fitted())
        yield "GPUs", hold_out.rows_of(classify(far).parsed)[1]


def groups_beyond() -> Named:
    """Groups of families beyond the bars that are held out."""
    own = [entry for entry in classified().parsed if entry.family.name == "operator"][:4]
    free = [name for name, c in fitted().items() if c.stage == "operator"][:1]
    table = {name: c if name in free else replace(c, stage=refit.GIVEN) for name, c in fitted().items()}
    yield "GPUs", hold_out.hold_out_beyond(own, table, "gpu")


def clusters() -> Named:
    """The fit of the constants of one cluster."""
    bare = [Measurement("c", "hbm_bandwidth", "s", "H100", {"bytes": 1 << n}, "bandwidth", 2500.0 + n, "GB/s", "s") for n in (28, 30)]
    bare += [
        Measurement("l", "kernel_launch", "s", "H100", {"timing": t}, "latency", us, "us", "s") for t, us in (("eager", 4.5), ("cuda graph", 2.1))
    ]
    one_shape = [m for m in measurements() if m.kind == "gemm_dense" and "H100" in m.hardware][::40]
    for name, own in (("shapes", some_gemms()), ("one shape", one_shape), ("bare", [])):
        found = cluster_fit.fit_cluster([*own, *bare], "h100-sxm", fitted())
        yield name, (found.fitted, found.refused, found.errors, found.n_rows, [why for _, why in found.skipped])
    yield "whose", [(m.id, m.hardware) for m in cluster_fit.measurements_of(measurements()[::40], "h100-sxm")[0]]
    yield "why others", [why for _, why in cluster_fit.measurements_of(measurements()[::40], "b200", "")[1]]


def loads() -> Named:
    """Rows of the busiest rank."""
    for name in ("balanced", "random", "power_law_1.2", "power_law_sampled_0.6", "power_law_1", "other"):
        grid = ((4, 12, 3, 40), (2, 8, 2, 1), (8, 64, 6, 300), (3, 8, 1, 1))
        yield name, [told(partial(busiest_rank, *one, name)) for one in grid]
        if name.startswith("power"):
            yield f"loads {name}", told(partial(expert_loads, 4, 12, 3, 40, name))


# ---- runs


def serving_settings(engine: str) -> Named:
    """What every row of an engine serves, by model."""
    groups: dict[str, list[Any]] = {}
    for row in (row for row in serving.ServingRow.read() if row.text("engine") == engine):
        steps = row.text("mode") in serving.STEPS
        found = told(partial(serving.step_setting_of if steps else serving.setting_of, row))
        groups.setdefault(f"{row.text('engine')} {row.text('model').split('/')[-1]}", []).append(
            (_plain(found), row.step_ms, row.drafts, row.acceptance)
        )
    yield from groups.items()


def _plain(found: Any) -> Any:
    """A setting with names in place of models and machines."""
    if isinstance(found, Replica):
        return found.model.name, found.formats, found.layout, found.machine.cluster.name
    if isinstance(found, tuple):
        return [_plain(part) for part in found]
    if isinstance(found, serving.ServeSetting):
        rest = (found.scenario, found.ratio, found.rounds, found.workers)
        return _plain((found.replica, found.decode)), repr(found.engine), rest
    return found


def serving_runs() -> Named:
    """Predictions of some rows, how they are judged, and the fastest layouts by made-up predictions."""
    rows = {row.id: row for row in serving.ServingRow.read()}
    for name in ("in0397", "in0671", "in0891", "in1563", "in3182", *[row.id for row in rows.values() if row.text("mode") in serving.STEPS]):
        yield name, _case(served.predict_row(rows[name]))
    known = [row for row in rows.values() if row.degrees["osl"] and row.degrees["concurrency"]]
    cases = [_noisy(row, 1 + 0.2 * math.sin(n)) for n, row in enumerate(known)]
    yield "fastest", served.fastest_layouts(cases)
    yield "fastest of few", served.fastest_layouts(cases[::3])
    yield "judged", [_case(case) for case in cases[::4]]
    points = [(1.0, 9.0), (2.0, 5.0), (2.0, 4.0), (8.0, 1.5)]
    yield "at", [served._at(points[:n], speed) for n in (1, 2, 3, 4) for speed in (0.5, 1.5, 2.0, 6.0, 9.0)]


def _noisy(row: serving.ServingRow, factor: float) -> served.ServingCase:
    """A prediction near the measured one."""
    tpot, ttft = (None if (value := row.numbers[name]) is None else value * factor for name in ("tpot_ms", "ttft_ms"))
    return served.ServingCase(row, tpot, ttft)


def _case(case: served.ServingCase) -> Any:
    errors = [case.error(family) for family in (served.TPOT, served.TTFT, served.LATENCY, served.STEP)]
    return case.id, case.tpot_ms, case.ttft_ms, case.step_ms, case.note, case.suspected, case.scored, case.warm, case.few, errors


def bars_of_replicas() -> Named:
    """Which bar a replica has, and what no judged run had."""
    for n, (dp, ep) in enumerate(((1, 1), (8, 8), (16, 16), (64, 64))):
        other = replace(load_whole("deepseek-v3"), name="other", vocab=1024)
        for model, gpu in ((load_whole("deepseek-v3"), "h200-sxm"), (other, "a100"), (load_whole("llama3-8b"), "b200")):
            name, layout = model.name, SimpleNamespace(dp=dp, ep=ep)
            one: Any = SimpleNamespace(model=model, machine=SimpleNamespace(gpu=SimpleNamespace(name=gpu)), layout=layout)
            limits = ((128.0, 100.0), (32768.0, 8192.0), (127.0, 99.0), (32769.0, 8193.0))
            lists = [served.outside_of(one, Scenario(1.0, *own, 1.0, n), disaggregated=n > 1) for own in limits]
            yield f"{name} {dp}", (lists, [served.served_interval(one, 40.0, disaggregated=way) for way in (True, False)])


def training_rows() -> Named:
    """What every row of training trains, how its framework runs it, its FLOPs, floor and group."""
    rows = run_setting.TrainingRow.read()
    for row in rows:
        found, machine = told(partial(run_setting.setting_of, row)), told(partial(run_setting.machine_of, row))
        seconds, own = step_time.measured_s(row), (step_time._aside(row), told(partial(run_setting.convention_of_row, row)))
        if isinstance(found, str) or isinstance(machine, str):
            yield row.id, (found if isinstance(found, str) else "", str(machine), seconds, own)
            continue
        training_recipe = told(partial(run_setting.training_recipe_of, row, machine[0], found.model.layer is not None))
        plain = (found.model.name, found.model.n_layers, found.model.mtp, found.layout, found.sequence, found.recipe, found.saving)
        ways = (training_recipe, machine[0], machine[1].cluster.name, step_time._group_of(row, machine[0]))
        floor = training_recipe if isinstance(training_recipe, str) else told(partial(step_time._plain_us, found, machine[1], training_recipe))
        yield row.id, (plain, ways, seconds, own, floor, step_time._group_of_step(found.model, found.layout, machine[1]))
    yield "FLOPs", training.flops_cases(rows)
    yield "groups", {str(key): value for key, value in training.by_group(training.flops_cases(rows)).items()}
    yield "block", training.pair_cases()
    flops = training.flops_cases(rows)
    yield "one line", [training.summarise("x", flops[:n], 0.1) for n in (0, 5, 40)]


def training_groups() -> Named:
    """How steps are judged, with made-up predictions."""
    cases = []
    for n, group in enumerate([*step_time.BARS, step_time.OTHER] * 5):
        seconds = 2.0 + n
        own: dict[str, Any] = {"id": f"r{n}", "model": f"m{n % 3}", "gpu": f"g{n % 2}", "group": group, "release": "1", "measured": seconds}
        own |= {"predicted": None if n == 9 else seconds * (1 + 0.11 * np.sin(n)), "note": "aside" if n == 11 else ""}
        cases.append(step_time.StepCase(**own, plain=0.8 * seconds, micro_batches=2 + n // 3, case=f"c{n % 3}"))
    yield "errors", [(case.error, case.plain_error, case.judged) for case in cases]
    yield "groups", step_time.judge_groups(cases)
    yield "votes", [{str(key): value for key, value in step_time.votes(cases, floor).items()} for floor in (True, False)]
    yield "slopes", step_time.slopes(cases)


MAKERS: dict[str, Callable[[], Named]] = {
    "scopes": scopes, "tables": tables, "apart": left_out_of_bars, "calls": library_calls, "error bars": error_bars, "fits": fits,
    "refits": refits, "held out": held_out, "nodes": nodes, "beyond": groups_beyond, "clusters": clusters, "loads": loads,
    **{f"settings of {name}": partial(serving_settings, name) for name in ("vllm", "sglang", "trtllm")},
    "serving runs": serving_runs, "serving bars": bars_of_replicas, "training rows": training_rows, "training groups": training_groups,
}  # fmt: skip


def numbers(part: str) -> dict[str, float]:
    """The checksums of a part."""
    with np.errstate(all="ignore"):
        return {name: checksum(value) for name, value in MAKERS[part]()}


CASES: Cases = {part: partial(numbers, part) for part in MAKERS}
