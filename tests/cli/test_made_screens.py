"""Regression values: screens, pages and JSON of plans, serving, validation, figures, routing and hardware, from results made without a run.

Layouts of `plan` and `serve` are searched by closed forms on a paper's machine, or their times are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dysharp.api import planning, run_validation, serving
from dysharp.api.arguments import Slo
from dysharp.api.plan_confirm import Confirmed, Ranked
from dysharp.api.serving_program import MergedLayer
from dysharp.api.serving_systems import SystemPoint
from dysharp.api.whole_model import describe
from dysharp.base.errors import SimulationError
from dysharp.cli import validate
from dysharp.cli.listing import print_list
from dysharp.cli.network import _print_curve
from dysharp.cli.serve import _print_serving
from dysharp.cli.texts import libraries_text, model_text, plan_text, routing_text, sweep_text, validate_text
from dysharp.measured.intervals import Interval
from dysharp.measured.validation import Validation
from dysharp.planning.advice.libraries import Call, LibraryAdvice, LibraryCell
from dysharp.planning.search import ConstantChange
from dysharp.runs.point import Point
from dysharp.serving.answers import Overlap, Slots
from dysharp.serving.balance import Rearranging
from dysharp.serving.layout import ServeLayout
from dysharp.serving.search import Rejected
from dysharp.serving.whatif import ServeWhatIf
from dysharp.show.serving import plot_serving
from dysharp.show.validation_page import _long_tables, _page_of
from dysharp.workload.describe import GpuRow, LayerRow, NodeRow, _LinkLoad
from tests.show.drawn import drawn_lines
from tests.show.held import Lines, digest, lines_of, plain, printed, stored_lines
from tests.show.made_results import Made

FOLDER = Path(__file__).with_name("made")

ASKED = "qwen3-30b", "paper-ascend-910b"


@cache
def plan(*vary: str) -> planning.Answer:
    tries = ["tp=1", "mbs=1", "vpp=1", "pp=1,2", "cp=1"]
    return planning.plan("qwen3-30b", 16, "paper-ascend-910b", batch=64, tries=tries, vary=vary, n_best=3, check="tp=1,pp=2,ep=8,dp=8,gbs=64")


def every_answer() -> planning.Answer:
    """A plan with all that can be asked for besides."""
    done = plan()
    first, second, third = done.plan.first.found.best
    moved = tuple(ConstantChange(f"made {i}", 1.2, 0.05 * i - 0.07, one, behind) for i, (behind, one) in enumerate(
        ((0.0, first), (0.031, second), (float("inf"), third), (0.0004, third))
    ))  # fmt: skip
    ranked = Ranked((second, first), ((2e6, 2.5e6), (1e6, None)), {"flat over 8 GPUs": "made reason"}, 4)
    confirmed = Confirmed(1.5e6, 1.625e6, 1.75e6, 1.875e6, "made reason", planning_replay())
    shapes = tuple(replace(one, read=1234) for one in done.plan.shapes)
    return replace(
        done, plan=replace(done.plan, shapes=shapes), what_ifs={"in-switch": second, "moe-hub": first}, ranked=ranked, confirmed=confirmed,
            moved=moved,
        served={"made-a": served(), "made-b": replace(served(), best=())},
    )  # fmt: skip


def planning_replay() -> Any:
    from tests.show.made_results import made_steps

    return made_steps().best.replayed


@cache
def served() -> serving.Serving:
    """Two layouts on two nodes; what their steps take is made."""
    done = serving.serve("deepseek-v3", "hw-dgx-h200-x2", engine="sglang", layouts=["tp=8,ep=8", "dp=8,ep=8", "tp=4,dp=2"], users=300)

    def made(point: Any, at: int) -> Any:
        steady = replace(
            point.served, tpot=31e3 + 997.0 * at, ttft=1.2e6 + 13e4 * at, rate=3.5 - at / 16, batch=40.0 + at, prompt_share=0.1 + at / 20
        )
        held = replace(point.memory, weights=81e9 + at * 1e9, buffers=3.25e9, free=17e9 - at * 1e9, request=0.3e9)
        return replace(point, served=steady, memory=held, scenario=replace(point.scenario, concurrency=96.0 + at))

    first, second = (made(point, at) for at, point in enumerate(done.best[:2]))
    pools = done.disaggregated and replace(
        done.disaggregated, users=444.0, served=first.served, tokens_per_gpu=1.2 * first.tokens_per_gpu, idle=2, transfer=7700.0
    )
    front = tuple(made(point, at) for at, point in enumerate(done.front))
    points = tuple(made(point, at) for at, point in enumerate(done.points))
    return replace(
        done, slo=Slo(1750.0, 45.0), best=(first, replace(second, system="")), front=front, points=points, disaggregated=pools,
        header=("a made line",), rejected=tuple(Rejected(ServeLayout(tp=1 << i), f"made reason {i}") for i in range(6)),
        what_ifs=(ServeWhatIf("faster", second, 777.0), ServeWhatIf("dead GPU", None, 0.0)), overlap=Overlap(0.125, 16), break_even=0.625,
        slots=(Slots(Rearranging(0, 1.5, 0.0, 0.0, 0.0), 650.0), Slots(Rearranging(1, 1.25, 3e9, 9e9, 0.5), 700.0), Slots(Rearranging(2, 1.1, 6e9,
            9e9, 1.5), 690.0)),
        systems=(SystemPoint("deepep", "real", 120.0, 130.0, 230.0, 250.0, 41.5), SystemPoint("dysharp", "paper", 90.0, 95.0, 200.0, 190.0, 35.25)),
        layers={"decode": MergedLayer(230.0, 250.0, 120.0), "prompts": MergedLayer(5230.0, 5150.0, 2120.0)},
    )  # fmt: skip


def no_points() -> serving.Serving:
    return replace(served(), best=(), front=(), disaggregated=None, overlap=Overlap(-0.0625, None), break_even=1.5, slots=(), layers={})


def rows(name: str, size: int, /, **given: Any) -> list[dict[str, Any]]:
    """Rows of a table. A value of `given` that is a list belongs to the rows one by one."""
    found = [Made({"name": f"{name} {i}", **{key: v[i % len(v)] if isinstance(v, list) else v for key, v in given.items()}}) for i in range(size)]
    for row in found:
        _ = [row[key] for key in ("n", "n_rows", "median_ape", "p90_ape", "bias")]  # a copy of a row has what was asked for
    return [*found]


def report() -> Validation:
    """Every table of a validation."""
    texts = {
        "family": ["layer", "nccl", "gemm"],
        "by": "made",
        "system": ["all", "deepep"],
        "hardware": "h100",
        "kind": ["k1", "k2", "k3"],
        "unit": "us",
    }
    texts |= {
        "part": ["host", "device"],
        "group": "weak",
        "regime": "graph",
        "predicted_as": "eager",
        "what": "call",
        "paper": "made",
        "measured": "text",
    }
    ids = [[f"id-{i}" for i in range(n)] for n in (2, 5)]
    more = {
        "later": [True, False],
        "holds": [True, False],
        "module": "m",
        "text": "t",
        "constant": "c",
        "from": "f",
        "held_out": 3.5,
        "unpredicted": "3: why; 4: how",
    }
    own = [
        {"id": f"row-{i}", "family": "layer", "measured": 90.0 + i, "predicted": p, "unit": "us", "error": e, "interval90": u, "note": note,
            "doubt": d, "system": "deepep"}
        for i, (p, e, u, note, d) in enumerate((
            (100.0, 11.125, [95.0, 110.0], "", ""), (80.0, -12.5, [70.0, 95.0], "", "nccl-ep, 97 us"),
            (70.0, 30.0, [60.0, 80.0], "weak", ""), (None, None, None, "made reason", ""),
            (88.0, 2.0, [86.0, 96.0], "", ""),
        ))
    ]  # fmt: skip

    def table(name: str, size: int, /, **given: Any) -> list[dict[str, Any]]:
        return rows(name, size, **(texts | more | given))

    return Validation(
        table("groups", 3), table("families", 3), table("sizes", 2), table("worst", 2, predicted=12.5, id="w", measured=11.0),
        Made({"name": "overall", "coverage": 91.25, "n": 321}), table("unsupported", 5, reason=["r1", "r2", "r3", "r4", "r5"], ids=ids,
            counts_for_coverage=[True, False]),
        table("constants", 2, meaning="m", fitted_on="f", seen_by=7), table("bars", 2), table("forms", 2), table("counted", 2, value=3),
            table("fits", 2),
        table("apart", 2), table("parts", 2), table("regimes", 2), table("borrowed", 1), table("hold", 2),
        table("beyond", 4, between=["", "", "bars", "bars"], system=["all", "deepep", "all", "deepep"], n=[3, 4, 0, 6]), table("sources", 1,
            other="o"),
        table("simulators", 1), table("calls", 2), (), "", own,
    )  # fmt: skip


def trained() -> run_validation.TrainingReport:
    families = rows("train", 4, family=list(validate_text.FAMILIES["training"])[:4], n_rows=[3, 5, 0, 7], bar=8.5, holds=True)
    groups = rows("groups", 2, group=["dense", "moe"], holds=[True, False])
    own = rows("rows", 3, id=["a", "b", "c"], family="step", unit="s", error=[3.5, -4.25, None], predicted=[1.5, 2.5, None], note=["", "", "made"])
    return run_validation.TrainingReport(families, own, groups)


def served_report() -> run_validation.ServingReport:
    families = rows("serve", 3, family=["TPOT", "TTFT", "none"], n_rows=[3, 5, 0], holds=True, bar=[99.0, None, 1.0])
    groups = rows("groups", 2, model=["a/b", "c"], hardware="h200", engine="vllm", mode="agg", n=4)
    layouts = {"groups": 12, "right": 9, "share": 75.0, "fronts": 7, "fronts_right": 5, "ep_groups": 4, "ep_right": 3}
    return run_validation.ServingReport(families, groups, layouts, rows("rows", 2, id=["a", "b"], note=["", "made"], ttft_error=[1.5, None]))


def whole_reports() -> Lines:
    """Every set of flags of `validate`: how many lines, and their digest; then runs whose bars do not hold."""
    for data, bars, groups in ((None, False, False), ("my.csv", False, False), (None, True, False), ("my.csv", False, True), (None, True, True)):
        text = list(printed(validate._print, report(), data, bars, groups))
        yield f"{data} {bars} {groups}: {len(text)} lines {digest(' '.join(text))}"
    failed = {"training": replace(trained(), families=[trained().families[0] | {"holds": False}, *trained().families[1:]]),
              "serving": replace(served_report(), families=[row | {"holds": False} for row in served_report().families])}  # fmt: skip
    for of, found in failed.items():
        for check, as_json in ((False, True), (True, False)):
            try:
                with patch(f"dysharp.api.run_validation.validate_{of}", lambda _, found=found: found):
                    yield f"{of} {digest(' '.join(printed(validate._validate_runs, of, 'my.csv', check, as_json)))}"
            except SimulationError as error:
                yield f"{of}: {error}"


def layer_rows() -> list[LayerRow]:
    def gpus(at: int) -> tuple[GpuRow, ...]:
        return tuple(
            GpuRow(n, 1.5 + at / 8 + n / 64, [1.25, None][at % 2], [3.5 - at / 4, None][n == 16], 3.75 + n / 16, "made note" * (n == 16))
            for n in (8, 16)
        )

    return [
        LayerRow("made", 3, 96, 6, 4000, 2.5, 0.375, 0.0625, 4, gpus(0)), LayerRow("made", 7, 96, 6, 4100, 2.75, 0.5, 0.0625, 0, gpus(1)),
        LayerRow("other", None, 64, None, None, 1.5, 0.25, None, 0, gpus(2)[:1]),
    ]  # fmt: skip


def node_rows() -> list[NodeRow]:
    return [NodeRow("made", 16, 8, scheme, 1.75, uniform, _LinkLoad(3.5, 3.25, 1.5, 1.625), _LinkLoad(1.125, 1.25, 2.5, 2.75))
            for scheme, uniform in zip(_schemes(), (1.875, None), strict=False)]  # fmt: skip


def _schemes() -> tuple[str, ...]:
    from dysharp.workload.describe import SCHEMES

    return tuple(SCHEMES)


def sweep_rows() -> dict[Point, dict[str, Any]]:
    base = Point("dysharp", "S-8", "paper-gh200-nvl32,link_GBps=900", "", gpus=4)
    other = replace(base, cluster="paper-gh200-nvl32", tokens=64, options=(("compute", False), ("window", 8)))
    made = {"time_us": 12.34, "bound_us": 5.67, "exposed_comm_us": 1.25, "gpus": 32, "tokens_per_gpu": 1024, "bound_resource": "gpu[0].up"}
    return {base: made, other: made | {"time_us": 22.5, "bound_us": None}}


def curve() -> Any:
    from dysharp.api.network_curve import NetworkCurve, _network_setting
    from dysharp.engine.flit.network import NetworkPoint, Protocol
    from tests.show.made_results import plain as made

    points = tuple(
        made(NetworkPoint, f"point {i}", load=load, saturated=load > 0.6, n_packets=7, n_flits=900 + i, digest="d", seed=3,
             packet_latency=float("nan") if i == 2 else 20.5 + i)
        for i, load in enumerate((0.25, 0.5, 0.75))
    )  # fmt: skip
    edge = {"load": 0.625, "accepted": 0.6125, "saturated_at": 0.65625, "accepted_at": 0.875}
    return NetworkCurve(_network_setting(cluster="paper-gh200-nvl32"), Protocol(), 3, points, edge)


def libraries(*clusters: str) -> Lines:
    """Calls with and without an error bar, ties, a batch that no library serves."""

    def call(library: str, us: float, p90: float | None, pool: str = "", own: bool = True) -> Call:
        errors = None if p90 is None else Interval(1 - p90 / 100, 0.9, 1.1, 1 + p90 / 100, 0.05, near=own)
        return Call(library, True, us, errors, pool)

    calls = (call("deepep normal", 90.0, 10.0), call("nccl-ep", 95.0, 12.5, "3 % apart", False), call("uccl-ep LL", 120.0, 5.0),
             call("mori", 130.0, None), call("fifth", 140.0, 9.0))  # fmt: skip
    cells = tuple(LibraryCell(cluster, gpus, gpus // 8, tokens, of, {"hybrid-ep normal": "no kernel", "flashinfer": "no kernel", "x": "other"})
                  for cluster in clusters
                  for gpus, tokens, of in ((8, 16, calls), (8, 64, calls[1:]), (8, 256, calls[1:3]), (16, 64, ())))  # fmt: skip
    return libraries_text.screen(LibraryAdvice("made-model", "graph", cells, ("a made note",)))


LISTED: dict[str, dict[str, Any]] = {
    "clusters": {"name": "made", "gpus": 4, "max_gpus": 8, "link_GBps": 450.5, "link_latency_ns": 250.0, "sms": 132, "fp8_TFLOPS": 1979.0,
        "hbm_GBps": 3350.0,
                 "measured": "partly"},
    "cluster-keys": {"name": "key", "range": "0 or more", "default": None, "meaning": "made"},
    "collectives": {"name": "made", "operations": ["all-reduce", "broadcast"], "summary": "a made one", "options": ["a", "b"]},
}  # fmt: skip
OPTION = {"of": "deepep", "name": "deepep.n_sm", "value": 20, "values": "8 to 24", "meaning": "made", "effect": "everywhere", "source": "assumed"}
OPTIONS = [OPTION, OPTION | {"of": "mori", "name": "mori.n_sm"}, OPTION | {"name": "deepep.form", "value": True, "effect": "real form"},
           OPTION | {"of": "fabric", "name": "fabric.al_entries"}, OPTION | {"of": "choices", "name": "machine.vcs"}]  # fmt: skip
TEXTS: dict[str, Callable[[], Lines]] = {
    "plan": lambda: printed(plan_text.print_plan, every_answer(), *ASKED),
    "plan-shapes": lambda: [*printed(plan_text.print_plan, plan("layers=24,48"), *ASKED), *str(plan().sentence()).splitlines()],
    "plan-check": lambda: [*printed(plan_text.print_check, plan()), *plan().arguments("mindspeed"), plan().verdict(), every_answer().moved_line()],
    "plan-json": lambda: plain({k: v for k, v in every_answer().to_dict().items() if k not in ("serving", "shapes", "not_considered")}),
    "serve": lambda: printed(_print_serving, served()),
    "serve-none": lambda: [*printed(_print_serving, no_points()), *printed(_print_serving, replace(no_points(), points=(),
        rejected=served().rejected))],
    "serve-json": lambda: plain({k: v for k, v in served().to_dict().items() if k not in ("launch", "front", "sentences", "advice")}),
    "serve-picture": lambda: drawn_lines(plot_serving(served())),
    "validate-own": lambda: printed(validate_text.print_own_rows, report(), "my.csv"),
    "validate-families": lambda: [*printed(validate_text.print_families, replace(report(), rows=[])), *str(report()).splitlines()],
    "validate-more": lambda: [*printed(validate_text.print_more, report(), own=False), *printed(validate_text.print_more, report(), own=True)],
    "validate-bars": lambda: printed(validate_text.print_bars, report(), False),
    "validate-groups": lambda: [*printed(validate_text.print_bars, report(), True), *printed(validate_text.print_hold_out, report())],
    "validate-training": lambda: [*printed(validate_text.print_training, trained(), "my.csv"), *printed(validate_text.print_training, trained()),
        str(trained())],
    "validate-serving": lambda: [*printed(validate_text.print_serving_report, served_report(), "my.csv"),
        *printed(validate_text.print_serving_report, served_report())],
    "validate-whole": whole_reports,
    "validate-page": lambda: [line for line in _page_of(report(), "f.svg").splitlines() if line.startswith(("|", "#", "All")) or "belong" in line],
    "validate-long": lambda: [f"{t.file}: {t.meaning}: {' '.join(one.name for one in t.columns.own)}: {len(rows)}"
        for t, rows in _long_tables(report())],
    "routing": lambda: [*printed(routing_text.print_layers, layer_rows()), *printed(routing_text.print_nodes, node_rows())],
    "routing-json": lambda: plain(routing_text.routing_dict("made", layer_rows())),
    "sweep": lambda: [*printed(sweep_text.print_sweep, sweep_rows()), *sweep_text.sweep_csv(sweep_rows()).splitlines()],
    "network": lambda: [*printed(_print_curve, curve()), *printed(_print_curve, replace(curve(), saturation=None)), *str(curve()).splitlines()],
    "network-json": lambda: plain(curve().to_dict()),
    "libraries": lambda: [*libraries("made"), *libraries("made", "other")],
    "list": lambda: [line for what, row in LISTED.items() for line in printed(print_list, what, [row])],
    "list-options": lambda: printed(print_list, "options", OPTIONS),
    "model": lambda: printed(model_text.print_description, describe("deepseek-v3", sequence=3072)),
    "model-layout": lambda: printed(model_text.print_description, describe("deepseek-v3",
        layout="pp=4,vpp=4,ep=8,gpus=64,m=8,stages=Et*3|(t*4|)*14t*2mL", sequence=3072, fixed_gib=3.5, dispatcher="deepep")),
}  # fmt: skip
SLOW = ("plan-shapes",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TEXTS])
def test_the_text_of_a_made_screen(name: str) -> None:
    assert lines_of(TEXTS, name) == stored_lines(FOLDER, name)
