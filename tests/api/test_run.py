"""`run` and `compare`: fields, defaults, refusals."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dysharp
from dysharp.api import Step
from dysharp.base.errors import ConfigError
from dysharp.runs import memory as memory_module
from dysharp.runs.causes import resource_words
from dysharp.specs import load_cluster, load_model

SMALL: dict[str, Any] = {"gpus": 4, "tokens": 24}

# The fields of `run --json` and their types; a nested dict lists its own keys.
OPERATORS = {"dispatch": int, "combine": int, "other": int}
WAITING = dict.fromkeys(("span", "moving", "resource", "own", "peers"), list)
PHASE = {"start": float, "end": float, "busy": float}
SCHEMA: dict[str, Any] = {
    "system": str,
    "form": str,
    "model": str,
    "cluster": str,
    "gpus": int,
    "tokens_per_gpu": int,
    "topk": int,
    "layer": int,
    "routing": str,
    "direction": str,
    "fidelity": str,
    "seed": int,
    "options": {
        "dispatch_window": int, "combine_window": int, "al_misses": int, "dispatch": str, "combine": str, "sums": str,
        "weights": str, "compute": bool,
    },
    "time_us": float,
    "phases_us": dict.fromkeys(("dispatch", "gemm1", "gemm2", "combine", "other"), PHASE),
    "exposed_comm_us": float,
    "traffic_bytes": {"up": OPERATORS, "down": OPERATORS},
    "wire_flits": {"up": int, "down": int},
    "utilization": dict.fromkeys(("up", "down", "sm", "up_max", "down_max", "sm_max"), float),
    "bound_us": float,
    "bound_resource": str,
    "bound_terms": {"memory": float, "head_latency": float, "tail_latency": float},
    "workload_bound_us": float,
    "attribution": dict.fromkeys(("link_up_us", "link_down_us", "sm_us", "latency_us", "window_us", "host_us"), float),
    "path_us": dict.fromkeys(("dispatch", "gemm1", "gemm2", "combine", "other"), float),
    "stalls": {"window_us": float, "link_us": float, "sm_us": float},
    "waiting_us": dict.fromkeys(("dispatch", "gemm1", "gemm2", "combine", "other"), WAITING),
    "n_ops": int,
    "n_events": int,
    "wall_s": dict.fromkeys(("routing", "plan", "engine", "analysis", "total"), float),
    "compile_s": float,
    "peak_rss_mb": float,
    "digest": str,
    "model_version": str,
}


def check_schema(found: Any, expected: Any, where: str = "row") -> None:
    """Exactly the expected keys, in order, each of its type."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key, part in expected.items():
            check_schema(found[key], part, f"{where}.{key}")
    else:
        assert type(found) is expected, f"{where}: {found!r}"


def test_row_has_exactly_the_fields() -> None:
    row = dysharp.run("dysharp", **SMALL)
    check_schema(row.to_dict(), SCHEMA)
    json.dumps(row.to_dict(), allow_nan=False)
    assert (row.system, row.form, row.model, row.gpus, row.tokens_per_gpu) == ("dysharp", "paper", "deepseek-v2-lite", 4, 24)
    assert row.routing == f"trace deepseek-v2-lite layer {row.layer} in-order"
    assert sum(row.attribution.values()) == pytest.approx(row.time_us)
    assert row.wall_s["total"] >= row.wall_s["engine"] + row.wall_s["plan"]


def test_comparison_has_its_fields() -> None:
    done = dysharp.compare(["deepep", "dysharp", "ideal"], **SMALL)
    found = done.to_dict()
    assert list(found) == ["rows", "baseline", "baselines", "speedup", "header", "sentence"]
    assert [row["system"] for row in found["rows"]] == list(found["speedup"]) == ["deepep", "dysharp", "ideal"]
    assert found["baseline"] == "deepep"
    assert found["speedup"]["deepep"] == 1.0
    times = {row["system"]: row["time_us"] for row in found["rows"]}
    assert found["speedup"]["dysharp"] == times["deepep"] / times["dysharp"]


@pytest.mark.parametrize("direction", ["bwd", "both"])
def test_rows_of_other_passes_have_the_same_fields(direction: str) -> None:
    row = dysharp.run("dysharp", direction=direction, **SMALL)
    check_schema(row.to_dict(), SCHEMA | {"bound_terms": dict.fromkeys(row.bound_terms, float)})
    json.dumps(row.to_dict(), allow_nan=False)
    assert row.direction == direction
    assert sum(row.attribution.values()) == pytest.approx(row.time_us)


def test_both_is_forward_and_then_backward_on_its_layout() -> None:
    """Same forward, same bytes as the two alone; the backward differs, because rows lie as they arrived."""
    sizes = {"gpus": 8, "tokens": 256}
    forward, backward, both = (dysharp.run("dysharp", direction=d, **sizes) for d in ("fwd", "bwd", "both"))
    assert forward.time_us < both.time_us < 1.1 * (forward.time_us + backward.time_us)
    assert both.time_us != forward.time_us + backward.time_us
    assert both.traffic_bytes["up"]["combine"] == forward.traffic_bytes["up"]["combine"] + backward.traffic_bytes["up"]["combine"]
    assert both.n_ops == forward.n_ops + backward.n_ops
    assert both.digest == dysharp.run("dysharp", direction="both", **sizes).digest


PACKET: dict[str, Any] = {"gpus": 4, "fidelity": "packet", "routing": "uniform", "model": "S-8"}


def test_a_window_is_the_first_tokens_and_says_what_follows_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.runs.known.REFUSED", 1e9)  # so few tokens are refused otherwise (test_known.py)
    row = dysharp.run("deepep", tokens=96, window=32, **PACKET)
    assert row.tokens_per_gpu == 32
    window = row.window
    keys = "tokens of_tokens time_us us_per_token half_window_time_us apart low_us high_us path_us surroundings_us"
    assert list(window) == keys.split()
    assert (window["tokens"], window["of_tokens"], row.layer_us) == (32, 96, window["time_us"])
    assert window["time_us"] == pytest.approx(row.time_us + 64 * window["us_per_token"])
    assert sum(window["path_us"].values()) == pytest.approx(window["time_us"])
    assert window["high_us"] - window["time_us"] == pytest.approx(window["apart"] * window["time_us"])
    assert list(row.to_dict())[-1] == "window"


def test_a_window_is_near_the_whole() -> None:
    """What the docs measure on S-8, on a layer of seconds."""
    whole, part = (dysharp.run("deepep", tokens=256, window=n, **PACKET) for n in (None, 96))
    print(f"{part.layer_us:.2f} us for {whole.time_us:.2f}")
    assert abs(part.layer_us / whole.time_us - 1) < 0.05
    assert whole.layer_us == whole.time_us


def test_comparisons_of_windows_are_about_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.runs.known.REFUSED", 1e9)
    done = dysharp.compare(["deepep", "dysharp"], tokens=64, window=16, **PACKET)
    assert done.speedup["dysharp"] == done.rows[0].window["time_us"] / done.rows[1].window["time_us"]


@pytest.mark.parametrize(
    ("window", "fidelity", "text"),
    [
        (16, "burst", r'window: found fidelity "burst" and one NVLink domain, expected "packet" or several domains \(the burst level'),
        (64, "packet", r"window: found 64, expected 4 to 63 \(below the 64 tokens per GPU\)"),
        (3, "packet", "window: found 3, expected 4 to 63"),
    ],
)
def test_wrong_windows(window: int, fidelity: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        dysharp.run("dysharp", gpus=4, tokens=64, window=window, fidelity=fidelity)


def test_header_names_the_pass() -> None:
    for direction, text in (("fwd", "; forward"), ("bwd", "; backward"), ("both", "; forward and backward")):
        assert dysharp.compare(["deepep"], direction=direction, **SMALL).header[0].endswith(text)


def test_defaults_of_compare() -> None:
    done = dysharp.compare(**SMALL)
    assert [row.system for row in done.rows] == ["deepep", "nvls", "comet", "fusion-only", "dysharp", "ideal"]
    assert {row.cluster for row in done.rows} == {"paper-gh200-nvl32"}
    assert load_model("deepseek-v2-lite").tokens_per_gpu == 1024


def test_run_and_compare_agree() -> None:
    alone, beside = dysharp.run("dysharp", seed=5, **SMALL), dysharp.compare(seed=5, **SMALL).rows[4]
    assert alone.digest == beside.digest
    assert alone.header == beside.header
    assert "header" not in alone.to_dict()


def test_header_says_what_the_numbers_rest_on() -> None:
    recorded = " ".join(dysharp.compare(["deepep"], **SMALL).header)
    for part in ("paper family", "no software cost is charged", "routing: recorded from a model: trace", "median imbalance", "not validated"):
        assert part in recorded
    synthetic = dysharp.compare(["deepep"], model="deepseek-v3", gpus=3, tokens=8).header
    assert "routing: drawn at random, not recorded: lognormal sigma 0.65; recorded ones: dysharp list routings" in synthetic
    assert "placement auto: 256 experts -> 258 slots on 3 GPUs" in synthetic


def test_sentence_is_about_the_best_system_one_could_build() -> None:
    done = dysharp.compare(**SMALL)
    real = min((row for row in done.rows if row.system != "ideal"), key=lambda row: row.time_us)
    assert done.sentence.startswith(f"Fastest is {real.system} ({real.time_us:.1f} us")
    assert done.sentence.count(". ") == 3
    assert "Without the switch, comet takes" in done.sentence  # the best system without it
    assert f"{resource_words(real.bound_resource)}, which alone needs {real.bound_us:.1f} us" in done.sentence
    assert "limited by" in done.sentence


def test_progress_names_system_and_ops() -> None:
    steps: list[Step] = []
    dysharp.compare(["deepep", "ideal"], progress=steps.append, **SMALL)
    assert [(s.system, s.index, s.count) for s in steps if s.stage == "plan"] == [("deepep", 1, 2), ("ideal", 2, 2)]
    finished = [s for s in steps if s.stage == "engine" and s.done]
    assert all(s.done == s.total for s in finished)
    assert len(finished) >= 2


def test_files_of_traces_and_counts_need_no_prefix(tmp_path: Path) -> None:
    import numpy as np

    expert = np.argsort(np.random.default_rng(0).random((1, 200, 64)), axis=2)[:, :, :6].astype(np.int16)
    np.savez(tmp_path / "mine.npz", expert=expert, meta=json.dumps({"E": 64}))
    row = dysharp.run("deepep", routing=str(tmp_path / "mine.npz"), **SMALL)
    assert row.routing.startswith("trace mine layer 0")
    lines = ["model,layer,expert,count", *(f"m,3,{e},{e + 1}" for e in range(64))]
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    row = dysharp.run("deepep", routing=str(tmp_path / "mine.csv"), **SMALL)
    assert (row.routing, row.layer) == ("counts m layer 3 (synthetic)", 3)


def test_a_routing_works_like_its_text() -> None:
    model = load_model("S-8")
    drawn = dysharp.make_routing("lognormal:0.65", model, 4, 24, seed=3)
    row = dysharp.run("deepep", model=model, routing=drawn)
    assert row.to_dict()["digest"] == dysharp.run("deepep", model=model, routing="lognormal:0.65", seed=3, **SMALL).digest
    assert (row.gpus, row.tokens_per_gpu) == (4, 24)
    moved = dysharp.run("deepep", model=model, routing=drawn, placement="eplb")
    assert moved.digest == dysharp.run("deepep", model=model, routing="lognormal:0.65", seed=3, placement="eplb", **SMALL).digest
    with pytest.raises(ConfigError, match="found choices of 4 GPUs with 24 tokens each, top-8 of 64 experts, expected 8 GPUs with 24 tokens"):
        dysharp.run("deepep", model=model, routing=drawn, gpus=8)


def test_options_reach_the_system() -> None:
    free, narrow = (dysharp.run("dysharp", options={"combine_window": w}, **SMALL) for w in (256, 16))
    assert (free.options["combine_window"], narrow.options["combine_window"]) == (256, 16)
    assert free.digest != narrow.digest
    text = dysharp.compare(["deepep", "dysharp"], options={"dysharp.combine_window": "16"}, **SMALL)
    assert text.rows[1].digest == narrow.digest
    pure = dysharp.run("deepep", options={"deepep.compute": "false"}, **SMALL)
    assert pure.utilization["sm"] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"system": "deepeep"}, 'system \'deepeep\': unknown; did you mean "deepep"?'),
        ({"model": "deepseek-v2-light"}, 'did you mean "deepseek-v2-lite"?'),
        ({"cluster": "hw-h100"}, "unknown cluster 'hw-h100'"),
        ({"system": "deepep", "options": {"form": "real"}}, 'form: found "real" on cluster "paper-gh200-nvl32", expected an hw-* cluster'),
        ({"gpus": 0}, "gpus: found 0, expected at least 1"),
        ({"gpus": 33}, "found 33 GPUs, expected 1 to 32"),
        ({"tokens": 0}, "tokens: found 0, expected at least 1"),
        ({"tokens": -3}, "tokens: found -3, expected at least 1"),
        ({"layer": 99}, "no layer 99, expected one of 1 to 26"),
        ({"routing": "unifrom"}, 'did you mean "uniform"?'),
        ({"placement": "contigous"}, 'did you mean "contiguous"?'),
        ({"gpus": 3, "placement": "contiguous"}, "64 experts do not divide by 3 GPUs"),
        ({"direction": "forward"}, "direction: found 'forward'"),
        ({"fidelity": "flit"}, "expected one of burst, packet"),
        ({"seed": -1}, "seed: found -1"),
        ({"options": {"combine_windw": 1}}, 'option dysharp.combine_windw: unknown; did you mean "combine_window"?'),
        ({"options": {"combine_window": 3}}, "found 3, expected 16 to 256 tokens per source GPU, or 0 for automatic"),
        ({"options": {"combine_window": 32.5}}, "found 32.5, expected a whole number"),
        ({"options": {"combine_window": "many"}}, "found 'many', expected a whole number"),
        ({"options": {"compute": "yes"}}, "expected true or false"),
        ({"options": {"compute": True, "dysharp.compute": False}}, "option dysharp.compute: found it twice, with and without its system"),
        ({"options": {"deepep.compute": False}}, "no system 'deepep' in this run"),
    ],
)
def test_wrong_input_is_one_clear_line(given: dict[str, Any], message: str) -> None:
    arguments = {"system": "dysharp", **SMALL, **given}
    with pytest.raises(ConfigError) as caught:
        dysharp.run(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("verb", ["run", "compare", "advise", "emulate"])
def test_an_unknown_argument_names_the_nearest(verb: str) -> None:
    with pytest.raises(TypeError, match=rf"{verb}\(\) got an unexpected keyword argument 'tokns'; did you mean \"tokens\"\?"):
        getattr(dysharp, verb)("deepep", tokns=8)


@pytest.mark.parametrize("verb", ["run", "compare", "advise"])
def test_help_shows_every_argument_once(verb: str) -> None:
    function = getattr(dysharp, verb)
    named = inspect.signature(function).parameters
    shared = "model cluster gpus tokens layer routing placement direction seed fidelity options progress"
    assert set(shared.split()) <= set(named)
    assert ("window" in named) == (verb != "advise")
    own = ("systems", "phase", "precision", "tuned", "why", "mapped", "finite")
    keywords = [name for name, parameter in named.items() if parameter.kind is parameter.KEYWORD_ONLY and name not in own]
    assert all(function.__doc__.count(f"\n{name}: ") == 1 for name in keywords)
    assert named["cluster"].default == ("hw-dgx-h100" if verb == "advise" else "paper-gh200-nvl32")


def test_help_of_emulate_shows_every_argument_once() -> None:
    named = inspect.signature(dysharp.emulate).parameters
    assert list(named)[:4] == ["system", "workload", "block", "gpus"]
    assert len(named) == 20
    assert (named["hidden"].default, named["progress"].default) == (256, None)
    assert all(dysharp.emulate.__doc__.count(f"\n{name}: ") == 1 for name in list(named)[1:])


@pytest.mark.parametrize(
    ("systems", "baseline", "message"),
    [
        ([], "deepep", "systems: found none"),
        (["deepep", "deepep"], "deepep", "expected at least one and each once"),
        (["dysharp"], "deepep", "baseline 'deepep': not among the systems compared"),
        (["dysharp"], "deepeep", 'did you mean "deepep"?'),
    ],
)
def test_wrong_systems(systems: list[str], baseline: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dysharp.compare(systems, baseline, **SMALL)
    assert message in str(caught.value)


def test_option_without_system_among_several() -> None:
    with pytest.raises(ConfigError, match=r'expected "SYSTEM\.combine_window" with one of deepep, dysharp'):
        dysharp.compare(["deepep", "dysharp"], options={"combine_window": 16}, **SMALL)


def test_too_much_memory_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs about [\d.]+ GiB of memory, this computer has [\d.]+ GiB"):
        dysharp.run("deepep", tokens=1 << 30)
    monkeypatch.setattr(memory_module, "usable_bytes", lambda: 1 << 27)
    with pytest.raises(ConfigError, match=r"nvls.*this computer has 0\.1 GiB"):
        dysharp.run("nvls", **SMALL)


def test_loaded_specs_work_like_names() -> None:
    model, cluster = load_model("deepseek-v2-lite"), load_cluster("paper-gh200-nvl32").with_gpus(4)
    loaded = dysharp.run("deepep", model=model, cluster=cluster, tokens=24)
    assert loaded.digest == dysharp.run("deepep", **SMALL).digest


def test_import_is_light() -> None:
    code = "import dysharp, sys; assert dysharp.__version__; print([m for m in ('numba', 'numpy', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert dysharp.load_model is load_model
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        _ = dysharp.rnu
