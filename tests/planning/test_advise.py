"""`advise`: what is ranked, where its error bars come from, what its what-ifs change."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dysharp as ds
from dysharp.analysis.load import load_of
from dysharp.analysis.surroundings import around, host_line
from dysharp.base.errors import ConfigError
from dysharp.measured.family import get_family
from dysharp.measured.intervals import Asked, Interval, interval_of, kind_of
from dysharp.measured.trust import (
    FEWEST,
    PredictionScope,
    _part_judges,
    departures,
    family_errors,
    measured_range,
    trust_of,
    warnings_of,
    whole_layers,
)
from dysharp.planning.advice.advise import Advice, percent
from dysharp.planning.advice.candidates import UNJUDGED, nothing_to_rank
from dysharp.planning.advice.tuning import _does_not_grow, edge_of, fewest_near_best
from dysharp.runs.causes import resource_words
from dysharp.runs.known import _Known
from dysharp.specs import Cluster, list_clusters, load_cluster, load_model
from dysharp.systems import all_systems
from dysharp.workload import make_routing

SMALL: dict[str, Any] = {"cluster": "hw-dgx-h100", "tokens": 32, "routing": "lognormal:0.8"}

MEASURED = replace(load_model("deepseek-v3"), n_experts=32)


@pytest.fixture(scope="module")
def advice() -> Advice:
    return ds.advise("deepseek-v2-lite", **SMALL)


def scope(**changes: Any) -> PredictionScope:
    """One inside all measured ranges, and what is changed of it."""
    deepep = {"form": "auto", "n_sm": 20, "dispatch": "fp8"}
    return replace(PredictionScope("deepep", MEASURED, load_cluster("hw-dgx-h100"), 4096, options=deepep), **changes)


def unlike(**values: int) -> Cluster:
    return replace(load_cluster("hw-dgx-h100"), **values)


def test_only_systems_of_today_are_ranked(advice: Advice) -> None:
    ranked = {entry.row.system for entry in (*advice.ranking, *advice.unjudged)}
    systems = all_systems()
    assert "deepep" in ranked
    assert all(systems[name].today and systems[name].has_real_form for name in ranked)
    assert not systems["dysharp"].today
    assert set(advice.not_ranked) == {name for name, s in systems.items() if s.today} - ranked
    for part in (advice.ranking, advice.unjudged):
        times = [entry.time_us for entry in part]
        assert times == sorted(times)


def test_what_cannot_be_judged_is_not_the_subject(advice: Advice) -> None:
    assert all(entry.bar() is not None for entry in advice.ranking)
    assert {entry.system for entry in advice.unjudged} == {"hybrid-ep", "trtllm-a2a"}
    assert advice.best is advice.ranking[0]
    assert advice.answer[0].startswith(f"Run {advice.best.system}: ")
    alone = ds.advise("deepseek-v2-lite", systems=["hybrid-ep"], options={"hybrid-ep.n_sm": 16}, **SMALL)
    assert (alone.ranking, alone.best.system) == ((), "hybrid-ep")
    assert "which no measurement checks" in alone.answer[0]


def test_training_ranks_systems_with_backward_kernels() -> None:
    done = ds.advise("deepseek-v2-lite", phase="train", cluster="hw-dgx-h100", tokens=16, options={"deepep.n_sm": 20, "hybrid-ep.n_sm": 16})
    assert {entry.system for entry in (*done.ranking, *done.unjudged)} >= {"deepep", "hybrid-ep", "megatron-a2a", "megatron-ag"}
    assert done.best.row.direction == "both"
    assert done.not_ranked["deepep-ll"].startswith("no backward kernels (DeepEP README")
    assert "training: forward and backward" in done.header[0]
    for direction in ("bwd", "both"):
        with pytest.raises(ConfigError, match="no system runs this on hw-dgx-h100: trtllm-a2a: no backward kernels"):
            ds.advise("deepseek-v2-lite", systems=["trtllm-a2a"], direction=direction, cluster="hw-dgx-h100", tokens=8)


def test_a_phase_sets_tokens_and_routing() -> None:
    given = {"cluster": "hw-dgx-h100", "gpus": 2, "systems": ["deepep-ll"]}
    done = ds.advise("deepseek-v2-lite", phase="decode", **given)
    assert done.best.tokens == 128
    assert any("256 requests stand for one token each, from 213 recorded sequences" in line for line in done.header)
    with pytest.raises(ConfigError, match="deepep-ll: no kernels for prefill"):
        ds.advise("deepseek-v2-lite", phase="prefill", **given)
    with pytest.raises(ConfigError, match="phase: found 'decoding'; did you mean \"decode\""):
        ds.advise("deepseek-v2-lite", phase="decoding", **given)
    with pytest.raises(ConfigError, match='found "bwd" in phase decode'):
        ds.advise("deepseek-v2-lite", phase="decode", direction="bwd", **given)


def test_the_fewest_sms_within_one_percent() -> None:
    assert fewest_near_best({4: 733.4, 8: 733.0, 16: 733.1, 64: 732.9}) == 4
    assert fewest_near_best({8: 5559.0, 16: 5574.0, 48: 5539.0}) == 8
    assert fewest_near_best({4: 811.0, 20: 664.0, 24: 656.0}) == 24
    assert [edge_of(n, (4, 8, 24)) for n in (4, 8, 24)] == ["fewest", "", "most"]


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of 512 tokens are large, and stop at 128."""
    monkeypatch.setattr("dysharp.planning.advice.prediction.WHOLE_ROWS", 1000)
    monkeypatch.setattr("dysharp.planning.advice.prediction.PRECISION", 0.5)
    monkeypatch.setattr("dysharp.runs.known.FEWEST", 128)


FEW = {"systems": ["deepep-ll"], "cluster": "hw-dgx-h100", "tokens": 512, "routing": "uniform"}


@pytest.mark.slow
def test_large_layers_stop_when_they_are_known(request: pytest.FixtureRequest) -> None:
    whole = ds.advise("deepseek-v2-lite", **FEW)
    request.getfixturevalue("stops")
    few = ds.advise("deepseek-v2-lite", **FEW)
    assert (whole.best.row.window, few.best.row.tokens_per_gpu, few.best.tokens) == ({}, 128, 512)
    assert few.best.time_us == pytest.approx(whole.best.time_us, rel=0.1)
    assert sum(few.best.parts_us().values()) == pytest.approx(few.best.time_us)
    assert few.best.interval is not None
    assert few.best.row.window is not None
    assert few.best.interval.typical >= few.best.row.window["apart"] > 0
    assert not any("tokens 128 is outside" in text for text in few.best.warnings)
    assert {entry.predicted.row.tokens_per_gpu for entry in few.what_if if entry.change == "links x2"} == {128}, "it stops where its base did"


@pytest.mark.slow
def test_what_is_compared_has_one_estimator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ds.advise("deepseek-v2-lite", **FEW)
    request.getfixturevalue("stops")
    usual = _Known.refusal
    monkeypatch.setattr(_Known, "refusal", lambda self, *most: usual(self, *most) or "no" * ("links-x2" in self.blocks[-1].simulated.cluster))
    done = ds.advise("deepseek-v2-lite", **FEW)
    assert done.best.row.window
    changes = {entry.change: entry for entry in done.what_if}
    assert (changes["links x2"].predicted.row.window, changes["links x2"].best_us) == ({}, whole.best.time_us)
    assert changes["links x2"].difference_us < 0
    assert {entry.best_us for entry in done.what_if if entry.predicted.row.window} <= {done.best.time_us}


def test_a_step_of_chunks_is_not_extended(advice: Advice) -> None:
    row = advice.best.row
    flat = {"dispatch": 10.0, "gemm1": 5.0, "gemm2": 5.0, "combine": 5.0, "other": 5.0}
    one = replace(row, time_us=30.0, path_us=flat)
    assert _does_not_grow(one, replace(one, time_us=45.0, path_us=flat | {"combine": 10.0})) == "Dispatch"
    assert _does_not_grow(one, replace(one, time_us=60.0, path_us={name: 2 * us for name, us in flat.items()})) == ""


def test_one_kernel_has_gemms_copies_and_waits() -> None:
    best = ds.advise("deepseek-v3", cluster="hw-dgx-b200", tokens=16, systems=["megamoe"]).best
    parts = best.one_kernel_us()
    assert parts is not None
    assert list(parts) == ["GEMMs", "copies", "waits"]
    assert sum(parts.values()) == pytest.approx(best.time_us)
    assert min(parts.values()) > 0
    assert parts["GEMMs"] == pytest.approx(best.row.bound_us), "the weights of 32 experts come from memory"
    assert best.eager_us is None


def test_resources_are_words() -> None:
    assert resource_words("gpu[3].memory") == "the memory of GPU 3"
    assert resource_words("none") == "none"
    assert resource_words("gpu[0].up (forward) and gpu[1].sm (backward)") == "the up link of GPU 0 (forward) and the SMs of GPU 1 (backward)"
    assert [percent(share) for share in (0.004, -0.07, 0.73, 0.006)] == ["no change", "-7 %", "+73 %", "+0.6 %"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("model", "cluster", "tokens"),
    [
        ("deepseek-v3", "hw-dgx-h100", 8),
        pytest.param(
            *("deepseek-v3", "hw-dgx-b200", 64),
            marks=pytest.mark.xfail(reason="GEMMs of the bound are slower than those of Mega MoE (docs/deviations.md)", strict=False),
        ),
        ("mixtral-8x7b", "hw-dgx-b200", 256),
        ("deepseek-v2-lite", "hw-dgx-h100", 512),
    ],
)
def test_communication_for_free_is_a_bound(model: str, cluster: str, tokens: int) -> None:
    done = ds.advise(model, cluster=cluster, tokens=tokens, routing="lognormal:0.8", options={"deepep.n_sm": 20, "hybrid-ep.n_sm": 16})
    after = {entry.change: entry.predicted for entry in done.what_if}
    free = after["communication for free"].time_us
    assert free <= min(entry.time_us for entry in (*done.ranking, *done.unjudged))
    assert free <= min(after[change].time_us for change in ("overlap by rows", "DySHARP switches", "software for free"))
    compared = ds.compare(["megamoe", "ideal", "dysharp"], "megamoe", model=model, cluster=cluster, tokens=tokens, routing="uniform").rows
    assert min(compared, key=lambda row: row.time_us).system == "ideal"
    assert all("surroundings" not in name for row in (compared[0], compared[2]) for name, us in row.attribution.items() if us > 0)


def test_what_ifs_have_the_formats_of_the_best() -> None:
    done = ds.advise("deepseek-v3", cluster="hw-dgx-b200", tokens=16, systems=["megamoe"])
    assert done.best.formats == "Dispatch MXFP8, Combine BF16, weights FP4"
    assert any("weights in FP4 instead of the model's FP8" in text for text in done.best.warnings)
    after = {entry.change: entry.predicted.row.options for entry in done.what_if}
    for change in ("overlap by rows", "DySHARP switches"):
        assert (after[change]["dispatch"], after[change]["weights"]) == ("mxfp8", "fp4")
    assert after["communication for free"]["weights"] == "fp4"


@pytest.mark.parametrize(
    ("system", "model", "cluster", "text"),
    [
        ("megamoe", "deepseek-v3", "hw-dgx-h100", "no kernel on hopper, expected blackwell (DeepGEMM"),
        ("megamoe", "mixtral-8x7b", "hw-dgx-b200", "no kernel for bf16 models, expected fp8"),
        ("deepep-ll", "gpt-oss-20b", "hw-dgx-h100", "no kernel for hidden 2880, expected 2048, 2560,"),
        ("deepep", "deepseek-v3", "hw-dgx-h100", ""),
        ("megamoe", "deepseek-v3", "hw-dgx-b200", ""),
    ],
)
def test_systems_without_kernels_are_told_apart(system: str, model: str, cluster: str, text: str) -> None:
    ships = all_systems()[system].ships
    assert ships is not None
    found = ships.why_not(load_model(model), load_cluster(cluster))
    assert found.startswith(text)
    assert bool(found) == bool(text)
    if text:
        with pytest.raises(ConfigError, match=f"no system runs this on {cluster}: {system}: no kernel"):
            ds.advise(model, cluster=cluster, tokens=8, systems=[system])


def test_a_fabric_without_a_switch_has_a_system_without_an_error_bar() -> None:
    done = ds.advise("deepseek-v2-lite", cluster="hw-mi300x", tokens=8)
    assert ([entry.system for entry in done.ranking], [entry.system for entry in done.unjudged]) == ([], ["mori"])
    alone = "mori: measurements check its Dispatch and Combine alone (dysharp validate, mori-intranode: median error "
    assert any(text.startswith(alone) for text in done.best.warnings)
    assert done.answer[0].startswith("Fastest prediction, which no measurement checks: mori, ")


def test_where_no_judged_system_runs_others_are_named() -> None:
    request: Any = SimpleNamespace(cluster=load_cluster("hw-dgx-h100"))
    found = nothing_to_rank({"tutel": UNJUDGED, "comet": "no real form"}, request)
    judged = "measurements judge the layer of no system; --systems tutel ranks systems without measurements"
    assert found == f"advise: no system runs this on hw-dgx-h100: {judged}"


def test_odd_sizes_have_no_fused_kernel() -> None:
    ships, b200 = all_systems()["megamoe"].ships, load_cluster("hw-dgx-b200")
    assert ships is not None
    odd = {"hidden": 7000}, {"expert_hidden": 1000}, {"n_matrices": 2}
    texts = [ships.why_not(replace(load_model("deepseek-v3"), **change), b200) for change in odd]
    for text, part in zip(texts, ("hidden 7000, expected a multiple of 128", "experts of 1000", "ungated experts"), strict=True):
        assert part in text


def test_every_ranked_system_says_where_its_software_runs(advice: Advice) -> None:
    assert all(s.ships is not None and s.ships.source for s in all_systems().values() if s.today and s.has_real_form)
    assert advice.not_ranked["megamoe"].startswith("no kernel on hopper")


def test_fp8_models_are_ranked_with_fp8_rows() -> None:
    done = ds.advise("deepseek-v3", cluster="hw-dgx-h100", tokens=8, systems=["deepep", "deepep-ll", "megatron-a2a"], options={"deepep.n_sm": 20})
    formats = {entry.row.system: entry.formats for entry in (*done.ranking, *done.unjudged)}
    low, nccl = "Dispatch FP8, Combine BF16", "Dispatch BF16, Combine BF16"
    assert formats == {"deepep": f"{low}, 20 SMs", "deepep-ll": low, "megatron-a2a": nccl}


@pytest.mark.parametrize(("system", "routing"), [("deepep", "powerlaw:2"), ("trtllm-a2a", "powerlaw:1.5"), ("megatron-a2a", "uniform")])
def test_the_parts_of_a_layer_add_up(system: str, routing: str) -> None:
    done = ds.advise("deepseek-v3", cluster="hw-dgx-b200", tokens=32, routing=routing, systems=[system], options={})
    parts = done.best.parts_us()
    assert sum(parts.values()) == pytest.approx(done.best.time_us)
    assert min(parts.values()) >= 0
    assert parts["GEMMs"] > 0.2 * done.best.time_us
    assert f"Combine {parts['combine'] / done.best.time_us:.0%}".replace("%", " %") in done.answer[1]


def test_a_fused_kernel_is_judged_by_whole_layers() -> None:
    asked = scope(system="megamoe", cluster=load_cluster("hw-dgx-b200"), options={"form": "auto"})
    found = trust_of(asked, {"dispatch": 0.3, "gemm1": 0.5, "surroundings": 0.2}, 300.0)
    own = interval_of(Asked("layers", "fused-layer", "b200", 0.0))
    assert found.families == ("fused-layer",)
    assert found.interval is not None
    assert found.interval.high90 == pytest.approx(own.high90, rel=0.15)


def test_a_family_of_one_gpu_has_no_bar_elsewhere() -> None:
    asked = scope(system="trtllm-a2a", options={"form": "auto", "sides": "one"})
    assert trust_of(asked, {"dispatch": 0.5, "gemm1": 0.5}).interval is None
    assert "trtllm-a2a was not measured on h100-sxm; no error bar, because only gb200 was measured" in warnings_of(asked)


def test_the_eager_time_says_whose_host_it_has(advice: Advice) -> None:
    assert "18 launches at 40.09 us each (h100.host_call_us, not your host: host time of one" in advice.host
    known = {entry.system for entry in (*advice.ranking, *advice.unjudged) if entry.eager_us is not None}
    assert known == {"deepep", "megatron-a2a"}, "systems whose eager layers were measured"
    mine = replace(load_cluster("hw-dgx-h100"), constants=(("h100.host_call_us", 4.0),))
    assert "18 launches at 4 us each (h100.host_call_us, this cluster's own value); a CUDA graph has no launches" in host_line(mine)


TENTH = Interval(0.9, 0.95, 1.05, 1.1, 0.03, near=True)


def test_ties_overlap_the_best(advice: Advice) -> None:
    first, *others = advice.ranking
    near, far = replace(others[0], row=replace(first.row, system="near"), interval=TENTH), replace(others[0], interval=TENTH)
    found = replace(advice, ranking=(replace(first, interval=TENTH), near, replace(far, row=replace(far.row, time_us=1e6))))
    assert [entry.system for entry in found.ties()] == ["near"]
    assert replace(advice, ranking=advice.ranking[:1]).ties() == ()


def test_a_faster_system_without_an_error_bar_is_named(advice: Advice) -> None:
    first, second = advice.ranking[:2]
    apart = replace(second, row=replace(second.row, time_us=first.time_us / 2), interval=None)
    found = replace(advice, unjudged=(apart,)).answer[0]
    assert f" Faster in this simulation, but without an error bar: {apart.system}" in found
    assert "Faster in" not in replace(advice, unjudged=(replace(apart, row=replace(apart.row, time_us=2 * first.time_us)),)).answer[0]


def test_the_number_of_sms_is_searched_in_the_measured_range(advice: Advice) -> None:
    deepep = next(entry for entry in advice.ranking if entry.row.system == "deepep")
    low, high = measured_range("deepep", "sms", "h100-sxm") or (0, 0)
    assert len(deepep.tried) > 3
    assert all(low <= n <= high for n in deepep.tried)
    chosen = deepep.row.options["n_sm"]
    assert chosen == fewest_near_best(deepep.tried)
    assert deepep.tried[chosen] == deepep.time_us


def test_a_given_knob_is_kept() -> None:
    done = ds.advise("deepseek-v2-lite", systems=["deepep"], options={"deepep.n_sm": 8}, **SMALL)
    assert (done.best.row.options["n_sm"], done.best.tried) == (8, {})


def test_error_bars_are_those_of_the_parts(advice: Advice) -> None:
    best = advice.best
    bar = best.bar()
    assert bar is not None
    assert best.interval is not None
    assert bar == best.interval.around(best.time_us)
    assert bar[0] < best.time_us < bar[1]
    kinds = {family: kind_of(get_family(family)) for family in (*best.families, "layer")}
    widths = [one.high90 - one.low90 for family, kind in kinds.items() for one in [interval_of(Asked(kind, family, "h100-sxm", best.time_us))]]
    assert best.interval.high90 - best.interval.low90 <= 1.2 * sum(widths)


def test_json_has_its_fields(advice: Advice) -> None:
    found = advice.to_dict()
    json.dumps(found, allow_nan=False)
    assert {"ranking", "limits", "what_if"} <= set(found)
    assert {"bound_us", "bound_resource", "bound_terms", "attribution", "load"} <= set(found["limits"])
    changes = [entry["change"] for entry in found["what_if"]]
    assert {"EPLB-style replicas", "links x2", "DySHARP switches", "EP4", "communication for free"} <= set(changes)
    for entry in found["what_if"]:
        assert entry["speedup"] == pytest.approx(found["ranking"][0]["time_us"] / entry["time_us"])


def test_one_gpu_is_not_offered_replicas() -> None:
    """Another copy on the same GPU takes nothing off another GPU: it said "EPLB +11 %"."""
    alone = ds.advise("qwen2-moe", cluster="hw-dgx-h100", gpus=1, tokens=4, routing="uniform", systems=["megatron-ag"])
    assert alone.what_if[0].change == "EP2"
    assert not [one.change for one in alone.what_if if "replicas" in one.change]


def test_paper_forms_have_no_error_bars_and_say_so(advice: Advice) -> None:
    for entry in advice.what_if:
        if entry.predicted.row.form == "paper":
            assert entry.predicted.bar() is None
            assert "charges no software cost" in entry.predicted.warnings[0]


def test_replicas_even_the_load_out(advice: Advice) -> None:
    before, after = advice.load
    assert (before.placement, after.placement) == ("auto", "eplb")
    assert after.rows_max_mean < before.rows_max_mean
    assert before.rows.sum() == after.rows.sum() == 8 * 32 * 6


def test_pairs_count_a_token_once_per_gpu() -> None:
    routing = make_routing("uniform", load_model("deepseek-v3"), 4, 16)
    load = load_of(routing)
    own = np.array([[any(slot // routing.placement.slots_per_gpu == d for slot in row) for d in range(4)] for row in routing.slot])
    assert (load.pairs == own.reshape(4, 16, 4).sum(axis=1)).all()
    assert load.pairs[load.busiest_pair] == (load.pairs * (1 - np.eye(4, dtype=int))).max()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tokens": 1 << 18}, "deepep-dispatch: tokens 262144 is outside the measured range (1 to 131072 on h100-sxm)"),
        ({"cluster": load_cluster("hw-dgx-h100").with_gpus(4)}, "deepep-dispatch: gpus 4 is outside the measured range (8 on h100-sxm)"),
        ({"model": replace(MEASURED, hidden=1024)}, "hidden 1024 is outside the measured range (2048 to 7168 on h100-sxm)"),
        ({"cluster": load_cluster("hw-dgx-h200")}, "deepep-dispatch was not measured on h200-sxm"),
        ({"cluster": load_cluster("hw-dgx-h800")}, "deepep-combine has too few measurements on h800 (1, at least 8 count); error bars"),
        ({"direction": "bwd"}, "no measurement checks predictions of backward passes"),
        ({"system": "new-one"}, "new-one: no measurement checks predictions of its layer"),
        ({"cluster": unlike(link_bytes_per_us=900_000)}, "differs from h100-sxm in link_GBps 900 (datasheet 450): not measured; "),
        ({"cluster": unlike(hbm_bytes_per_us=1_000_000, n_sms=100)}, "h100-sxm in hbm_GBps 1000 (datasheet 3350), n_sms 100 (datasheet 132)"),
        ({"cluster": unlike(fp8_flops_per_us=500_000_000)}, "h100-sxm in fp8_TFLOPS 500 (datasheet 1979)"),
        ({"options": {"form": "auto"}}, "deepep-dispatch: dispatch bf16 was not measured on h100-sxm, only dispatch fp8"),
        ({"system": "deepep-ll", "options": {"form": "auto"}}, "deepep-ll: dispatch bf16 was not measured on h100-sxm, only combine bf16"),
        ({"model": replace(MEASURED, gemm_dtype="bf16")}, "grouped-gemm: bf16 was not measured on h100-sxm, only fp8"),
        ({"system": "megamoe", "cluster": load_cluster("hw-dgx-b200"), "options": {"form": "auto"}}, "dispatch bf16, weights fp8 was not"),
        ({"tokens": 64, "model": load_model("deepseek-v3")}, "sum; whole layers were measured on h100-sxm at tokens 4096 (here 64), experts "),
        ({"system": "megatron-a2a", "tokens": 256, "options": {"form": "auto"}}, "whole layers were measured on h100-sxm at tokens 4096 (here 256"),
        ({"routing": make_routing("powerlaw:2", MEASURED, 8, 4096)}, "the mean of rows, but measurements had even routing"),
        ({"cluster": replace(load_cluster("hw-dgx-h100"), constants=(("deepep.call_us", 20.0),))}, "sets its own constants"),
        ({"options": {"form": "auto", "n_sm": 64}}, "sms 64 is outside the measured range (4 to 24 on h100-sxm)"),
    ],
)
def test_what_lies_outside_carries_a_warning(changes: dict[str, Any], text: str) -> None:
    assert warnings_of(scope()) == ()
    assert text in " | ".join(warnings_of(scope(**changes)))


@pytest.mark.parametrize(("tokens", "experts"), [(1, 256), (64, 32), (4096, 256)])
def test_chance_is_no_skew(tokens: int, experts: int) -> None:
    model = replace(load_model("deepseek-v3"), n_experts=experts)
    for seed in range(4):
        routing = make_routing("uniform", model, 8, tokens, seed=seed)
        assert not any("skewed" in text for text in warnings_of(scope(model=model, tokens=tokens, routing=routing)))
    grown = scope(system="megamoe", routing=make_routing("powerlaw:2", model, 8, 256))
    assert not any("skewed" in text for text in warnings_of(grown))  # its rows are skewed, too


def test_skew_travels_with_a_row() -> None:
    row = ds.run("deepep", model="deepseek-v3", cluster="hw-dgx-h100", tokens=32, routing="powerlaw:2")
    assert any(text.startswith("skewed routing: the busiest GPU has ") for text in row.warnings)


def test_packaged_machines_are_their_gpus() -> None:
    machines = [load_cluster(name) for name in list_clusters() if name.startswith("hw-")]
    assert len(machines) > 4
    assert [departures(cluster) for cluster in machines] == [""] * len(machines)


def test_whole_layers_count_inside_their_ranges() -> None:
    assert whole_layers(scope()) == family_errors()["layer", "h100-sxm"]
    assert ds.advise("deepseek-v2-lite", systems=["deepep"], options={"deepep.n_sm": 8}, **SMALL).layers is None
    for changes in ({"tokens": 64}, {"model": load_model("deepseek-v3")}, {"cluster": unlike(n_sms=100)}, {"system": "deepep-ll"}):
        assert whole_layers(scope(**changes)) is None


def test_another_machine_has_the_bars_of_a_gpu_held_out() -> None:
    shares = {"dispatch": 0.3, "gemm1": 0.4, "combine": 0.3}
    here, other = (trust_of(scope(cluster=cluster), shares) for cluster in (unlike(), unlike(hbm_bytes_per_us=1_000_000)))
    assert here.interval is not None
    assert other.interval is not None
    assert here.interval.near or not other.interval.near
    assert other.interval.high90 / other.interval.low90 >= here.interval.high90 / here.interval.low90


def test_the_warning_travels_with_rows_and_comparisons() -> None:
    row = ds.run("deepep", model="deepseek-v2-lite", cluster="hw-dgx-h100", gpus=4, tokens=16)
    assert any("gpus 4 is outside" in text for text in row.to_dict()["warnings"])
    done = ds.compare(["deepep", "dysharp"], model="deepseek-v2-lite", cluster="hw-dgx-h100", tokens=16)
    assert any(line.startswith("warning: dysharp: the paper form") for line in done.header)
    assert "warnings" not in ds.run("deepep", model="deepseek-v2-lite", gpus=4, tokens=16).to_dict()


def test_a_gpu_without_rows_has_wider_bars() -> None:
    shares = {"dispatch": 0.3, "gemm1": 0.4, "combine": 0.3}
    here, elsewhere = (trust_of(scope(cluster=load_cluster(name)), shares) for name in ("hw-dgx-h100", "hw-dgx-h200"))
    assert here.interval is not None
    assert elsewhere.interval is not None
    assert here.interval.high90 / here.interval.low90 <= elsewhere.interval.high90 / elsewhere.interval.low90
    own, far = (interval_of(Asked("communication kernels", "deepep-dispatch", gpu, 0.0)) for gpu in ("b200", "h200-sxm"))
    assert own.high90 / own.low90 < far.high90 / far.low90
    assert trust_of(scope(system="new-one"), shares).interval is None


def test_the_table_of_errors_covers_the_systems() -> None:
    judged = [name for name in all_systems() if _part_judges(name)]
    assert judged == ["deepep", "deepep-ll", "megamoe", "megatron-a2a", "megatron-ag", "trtllm-a2a"]
    for family in {family.name for name in judged for family in _part_judges(name).values()}:
        assert any(name == family and entry.n >= FEWEST for (name, _), entry in family_errors().items())


def test_surroundings_grow_with_rows_and_vanish_without_them() -> None:
    cluster, model = load_cluster("hw-dgx-h100"), load_model("deepseek-v3")
    few, many = (around(cluster, model, rows, rows / 2, permutes=1, fp8_rows=True) for rows in (100.0, 10000.0))
    assert few.device_us < many.device_us
    assert many.cast_us == 0.0
    assert around(cluster, model, 100.0, 50.0, permutes=0, fp8_rows=False).permute_us == 0.0
    assert few.host_us == many.host_us > 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cluster": "paper-nvl72"}, "of the paper family, expected an hw-"),
        ({"systems": ["dysharp"]}, "dysharp has no real form and runs on no machine of today"),
        ({"systems": ["nvls"]}, "nvls has no real form"),
        ({"systems": []}, "found no system"),
        ({"systems": ["deepeq"]}, 'did you mean "deepep"'),
        ({"routing": "lognormal:x"}, "routing"),
        ({"options": {"deepep.n_sm": 7}}, "expected an even number of SMs"),
    ],
)
def test_wrong_input_is_one_clear_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        ds.advise("deepseek-v2-lite", **(SMALL | given))
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_progress_and_memory_are_told() -> None:
    seen = []
    done = ds.advise("deepseek-v3", systems=["deepep"], options={"deepep.n_sm": 8}, cluster="hw-dgx-h100,hbm_GB=70", tokens=8, progress=seen.append)
    assert {step.system for step in seen} >= {"deepep", "dysharp", "ideal"}
    told = [text for text in (*done.header, *done.best.warnings) if "take 82 GB per GPU, but a GPU has 75 GB" in text]
    assert told == [text for text in done.header if text.startswith("warning: memory: the experts")]
    assert len(told) == 1


def test_a_precision_sets_products_and_rows() -> None:
    given: dict[str, Any] = {"cluster": "hw-dgx-h100", "gpus": 4, "tokens": 8, "systems": ["deepep"], "options": {"deepep.n_sm": 8}}
    plain, narrow, mixed = (ds.advise("deepseek-v2-lite", precision=name, **given) for name in (None, "fp8", "fp8,sent=bf16"))
    assert [one.best.row.options["dispatch"] for one in (plain, narrow, mixed)] == ["rows", "fp8", "rows"]
    assert (plain.formats["products"]["experts"], mixed.formats["products"]["experts"]) == ("bf16", "fp8")
    assert narrow.header[1] == "formats: weights fp8-block; products fp8; KV bf16; state fp8; rows fp8 out, bf16 back"
    assert narrow.to_dict()["formats"]["sent"] == "fp8"
    with pytest.raises(ConfigError, match="found int4 weights, which no optimizer updates"):
        ds.advise("deepseek-v2-lite", precision="int4", direction="bwd", **given)
    four = ds.advise("deepseek-v2-lite", precision="int4", **given)
    assert four.header[1] == "formats: weights int4; products bf16; KV bf16; state bf16; rows bf16 out, bf16 back"
    assert four.best.row.time_us < plain.best.row.time_us
    assert "grouped-gemm: weights int4 was not measured on h100-sxm, only fp8" in four.best.warnings
