"""Regression values: answers of `step`, `compare`, `network` and tensor parallelism on made Rows, without a run, held as text in `made/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from dysharp.analysis import Row
from dysharp.api import comparison, network_curve, tensor_parallel, training
from dysharp.api.comparison import compare
from dysharp.base.errors import ConfigError
from dysharp.planning.advice.tuning import TuningSearch
from dysharp.runs.known import NoEstimate
from dysharp.specs import load_cluster, load_whole
from tests.figures.made_rows import numbers
from tests.show.held import Lines, lines_of, stored_lines
from tests.show.made_results import made_row, window

FOLDER = Path(__file__).with_name("made")


def short(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" if isinstance(value, str) else f"{name} {value:.5g}" for name, value in values.items())


def made_pair(system: str, *, real: bool) -> tuple[Row, Row]:
    """A Row of either pass; that of hybrid-ep is of leading tokens, tutel drops rows."""
    dropped = 9 if system == "tutel" else 0
    pair = made_row(system, real=real, dropped_rows=dropped), made_row(system, real=real, nics=True, direction="bwd", dropped_rows=dropped)
    return (window(pair[0]), window(pair[1])) if system == "hybrid-ep" else pair


STEPS: dict[str, tuple[str, str, str, str | None, dict[str, Any]]] = {
    "pipeline": ("deepseek-v2-lite", "paper-gh200-nvl32", "pp=3,ep=4,m=5,dp=8", None, {"sequence": 96}),
    "chunks": ("deepseek-v2-lite", "paper-gh200-nvl32", "pp=3,vpp=3,ep=4,m=6", None, {"sequence": 96, "recompute": ("moe_act",)}),
    "pairs": ("qwen3-30b", "hw-dgx-h100", "pp=4,vpp=2,ep=8,m=16,dp=8", "dualpipev", {"sequence": 2048, "precision": "fp8"}),
    "split": ("deepseek-v2-lite", "hw-dgx-h100", "tp=2,pp=3,ep=8,m=7,dp=4,mbs=2", "zb-h1", {"sequence": 512}),
    "dense": ("llama3-8b", "hw-dgx-h100", "tp=4,pp=2,dp=2,m=3", None, {"sequence": 1024}),
}  # fmt: skip


def steps() -> Lines:
    """A step in a few lines for each of `STEPS`."""
    for name, (model, cluster, layout, schedule, more) in STEPS.items():
        systems = ["deepep", "hybrid-ep", "tutel"]
        real = cluster.startswith("hw")
        with patch.object(training, "rows_both_ways", lambda _, real=real, systems=systems, **__: [made_pair(s, real=real) for s in systems]):
            try:
                done = training.step(model, cluster, layout, schedule, None if name == "dense" else systems, **more)
            except ConfigError as error:
                yield f"{name}: {error}"
                continue
        yield f"{name}: {done.sentence()} {done.memory_line()} {short(done.gains)}"
        yield from done.header
        for one in done.steps:
            speed = {"us": one.step_us, "speed": one.tokens_per_s_gpu, "tflops": one.tflops, "mfu": one.mfu}
            yield f"{one.system} {short(speed)}; {short(one.shares)}"
            yield f"  {one.ep and short(asdict(one.ep))}; {one.energy and short(asdict(one.energy))}"


def simulated(systems: Mapping[str, Any], request: Any) -> list[Row | NoEstimate]:
    """Made Rows of each system in the form that its options ask for; comet has no estimate, tutel drops rows."""

    def one(name: str, at: int) -> Row | NoEstimate:
        if name == "comet":
            return NoEstimate("made reason")
        real = systems[name].has_real_form and request.cluster.family == "hw" and request.options.get(f"{name}.form") != "paper"
        knobs = {key.partition(".")[2]: value for key, value in request.options.items() if key.startswith(f"{name}.")}
        row = made_row(name, real=real, options=knobs, dropped_rows=9 * (name == "tutel"))
        return replace(row, time_us=row.time_us * (0.75 if knobs.get("n_sm") == 8 else 1))

    return [one(name, at) for at, name in enumerate(systems)]


def searched(systems: Mapping[str, Any], request: Any) -> dict[str, TuningSearch]:
    """deepep's search finds a better number of SMs, hybrid-ep's a worse one."""
    best = {"deepep": {"n_sm": 8}, "hybrid-ep": {"n_sm": 30}}
    return {name: TuningSearch(((best[name], 9.0),), best[name], 2, 12) for name in best if name in systems}


def comparisons() -> Lines:
    """The systems, forms and speed-ups of comparisons on made Rows."""
    asked: list[tuple[Any, Any, Any, dict[str, Any]]] = [(None, None, forms, {"cluster": cluster}) for cluster, forms in product(
        ("paper-gh200-nvl32", "hw-dgx-h100", "hw-dgx-h100-x2", "paper-dgx-h100-x4", "hw-mi300x-x2"), (None, "real", "paper", "all"))]  # fmt: skip
    asked += [(["deepep", "hybrid-ep", "tutel"], base, None, {"cluster": "hw-dgx-h100", "tuned": True}) for base in (None, "tutel", "nvls")]
    asked += [
        (["tutel", "ideal", "nvls"], None, None, {}),
        (["tutel"], None, None, {}),
        (["comet"], None, None, {}),
        (["deepep"] * 2, None, None, {}),
    ]
    with patch.object(comparison, "simulate_together", simulated), patch.object(comparison, "tune", searched):
        for systems, base, forms, more in asked:
            try:
                done = compare(systems, base, forms, model="deepseek-v2-lite", tokens=16, **more)
            except (ConfigError, NoEstimate) as error:
                yield f"{systems} {base} {forms} {more}: {type(error).__name__} {error}"
                continue
            yield f"{systems} {base} {forms} {more}: {short(done.speedup)}; {done.baselines} {done.baseline}; {done.left_out}"
            yield "  " + "; ".join(f"{row.system} {row.form} {row.options}" for row in done.rows)
            tuned = {name: (one.best, one.overruled) for name, one in done.tuned.items()}
            yield f"  {done.sentence[:70]} {tuned} {done.formats if systems else ''}"


SETTINGS: tuple[dict[str, Any], ...] = (
    {}, {"cluster": "paper-gh200-nvl32"}, {"cluster": "paper-nvl72", "k": 12}, {"cluster": "hw-dgx-h100", "packet_flits": 3},
        {"curve": "xbar8_d10_v4b8_p9_int2"},
    {"curve": "fly4x4_v2b16_p1_islip_spec"}, {"curve": "fattree4x2_v4b8_p9_transpose_io2_rd1_seed3"}, {"curve": "xbar8_v4b8_p1_hot4",
        "packet_flits": 5},
    {"pattern": "hotspot:4,2.5", "burst": "50:25"}, {"pattern": "permutation:1,0,3,2,5,4,7,6", "packet_flits": 4, "k": 8},
        {"delays": "terminal=10,link=5,vc=2,credit=3"},
    {"topology": "ring", "k": 6, "lanes": 2, "speedup": 3, "allocator": "islip", "speculative": True, "hold_switch": True, "vcs": 6, "buffer": 5,
        "n": 1},
    {"cluster": "a", "curve": "b"}, {"pattern": "uniform:3"}, {"pattern": "hotspot:x"}, {"burst": "5"}, {"delays": "link"}, {"delays": "link=x"},
        {"delays": "lnk=1"},
    {"curve": "xbar8"}, {"curve": "xbar8_v4b8_p9_int3"}, {"pattern": "unifrm"}, {"width": 3}, {"cluster": "hw-mi300x-x2"},
)  # fmt: skip
LOADS = (
    "0.5,0.1,0.5",
    "0.1:0.4:0.1",
    "0.05:0.951:0.3",
    "1",
    "0",
    "1.1",
    "a",
    "0.1:inf:0.1",
    "0.2:0.1:0.1",
    "0.1:0.9:0",
    "0.001:1:0.001",
    "0.0005:1:0.0005",
)


def networks() -> Lines:
    asks: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ((network_curve._network_setting, SETTINGS), (network_curve._parse_loads, LOADS))
    for what, ask in asks:
        for one in ask:
            try:
                found = what(**one) if isinstance(one, dict) else what(one)
                yield f"{one}: {found if isinstance(found, network_curve._Setting) else (len(found), found[:3], found[-1])}"
            except ConfigError as error:
                yield f"{one}: {error}"


def sub_layers() -> Lines:
    """Widths of the GEMMs beside each exchange, and what sub-layers take beside them on made Rows."""

    def fake(system: str, *, workload: Any, cluster: Any, gpus: int, options: Any) -> Any:
        draw = numbers(f"{system} {workload.name} {options}")
        return SimpleNamespace(time_us=draw(1e5, 2e5) + workload.size / 1e6)

    models = [load_whole(name) for name in ("deepseek-v3", "deepseek-v2-lite", "qwen3-30b", "llama3-8b")]
    for model, tp, serving in product(models, (2, 4), (True, False)):
        yield f"{model.name} {tp} {serving} {tensor_parallel._ends(model, tp, serving=serving)}"
    machine = load_cluster("hw-dgx-h100")
    with patch.object(tensor_parallel, "run", fake):
        for model, system in product(models, ("cais", "cais-no-coord", "tp-nvls")):
            trained = tensor_parallel.step_sub_layers(system, model, machine, 4, 3072)
            curve = tensor_parallel.serving_curves(system, model, machine)(4)
            told: Sequence[tuple[float, ...]] = (trained.forward, trained.backward, curve.attention, curve.ffn)
            yield f"{model.name} {system}: {'; '.join(' '.join(f'{us:.6g}' for us in part) for part in told)}"
            yield f"  {tensor_parallel.step_words(system, model)}"


TEXTS: dict[str, Callable[[], Lines]] = {
    "steps": steps, "comparisons": comparisons, "networks": networks, "sub-layers": sub_layers,
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_made_answers(name: str) -> None:
    assert lines_of(TEXTS, name) == stored_lines(FOLDER, name)
