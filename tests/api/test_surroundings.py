"""On hw clusters a Row is a whole layer, the same in `run`, `compare`, `advise` and the layer family of `validate`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dysharp as ds
from dysharp.analysis.surroundings import Surroundings, around
from dysharp.engine.burst.run import run_burst
from dysharp.measured.families.layer import _LayerCase, program_us
from dysharp.program.merge import Part, merge
from dysharp.specs import list_clusters, load_cluster, load_model
from dysharp.specs.gpu import load_gpu
from dysharp.systems import all_systems, get_system
from dysharp.testing.conformance import surroundings
from dysharp.testing.conformance.case import SystemCase
from dysharp.workload import make_routing, needed_gpus, rows_per_slot

MODEL, CLUSTER, TOKENS = "deepseek-v2-lite", "hw-dgx-h100", 32
SMALL: dict[str, Any] = {"model": MODEL, "cluster": CLUSTER, "tokens": TOKENS, "routing": "uniform"}
PARTS = ["permute_us", "activation_us", "cast_us", "launch_us", "host_us"]


@pytest.mark.parametrize(
    ("system", "options", "n_sm", "fp8"),
    [("deepep", {"n_sm": 8, "dispatch": "fp8"}, 8, True), ("deepep", {"n_sm": 20}, 20, False), ("megatron-a2a", {}, 0, False)],
)
def test_run_compare_advise_and_validate_give_the_same_layer(system: str, options: dict[str, Any], n_sm: int, fp8: bool) -> None:
    row = ds.run(system, options=options, **SMALL)
    named = {f"{system}.{name}": value for name, value in options.items()}
    compared = ds.compare([system], system, options=named, **SMALL).rows[0]
    best = ds.advise(MODEL, cluster=CLUSTER, tokens=TOKENS, routing="uniform", systems=[system], options=named).best
    assert row.time_us == compared.time_us == best.time_us
    assert row.eager_us == compared.eager_us == best.eager_us

    cluster, model = load_cluster(CLUSTER), load_model(MODEL)
    routing = make_routing("uniform", model, 8, TOKENS)
    rows = float(rows_per_slot(routing).reshape(8, -1).sum(axis=1).max())
    copies = float(needed_gpus(routing).sum(axis=0).max())
    case = _LayerCase(
        gpu="h100-sxm",
        system=system,
        gpus=8,
        hidden=model.hidden,
        inter=model.expert_hidden,
        experts=model.n_experts,
        topk=model.topk,
        tokens=TOKENS,
        gated=True,
        dtype=model.gemm_dtype,
        fp8_rows=fp8,
        n_sm=n_sm,
        rows=rows,
        touched=8.0,
        copies=copies / TOKENS,
    )
    assert not case.training
    assert program_us(case, cluster.fitted) == pytest.approx(row.eager_us, rel=1e-9)


@pytest.mark.parametrize("direction", ["fwd", "bwd", "both"])
@pytest.mark.parametrize("system", ["deepep", "megamoe", "dysharp"])
def test_the_parts_add_up(system: str, direction: str) -> None:
    row = ds.run(system, direction=direction, **SMALL)
    assert list(row.surroundings_us) == PARTS
    found = Surroundings(**row.surroundings_us)
    inside = row.path_us.get("around", 0.0)
    assert (inside > 0) == (system == "deepep")
    assert row.time_us == pytest.approx(row.program_us + (0.0 if inside else found.device_us))
    assert row.program_us == pytest.approx(row.simulated_us + inside)
    assert row.eager_us == pytest.approx(row.time_us + found.host_us)
    assert sum(row.attribution.values()) == pytest.approx(row.time_us)
    assert max(phase["end"] for phase in row.phases_us.values()) == pytest.approx(row.program_us)
    told = json.loads(json.dumps(row.to_dict(), allow_nan=False))
    assert (told["simulated_us"], told["eager_us"]) == (row.simulated_us, row.eager_us)


def test_kernels_around_gemms_take_the_time_and_memory_of_the_own_rows() -> None:
    """Alone the kernels take what the closed forms say of each GPU; the fewest rows end first, so a skewed layer is shorter than the sum."""
    cluster, model = load_cluster(CLUSTER), load_model(MODEL)
    chosen, routing = get_system("deepep"), make_routing("lognormal:1.0", model, 8, TOKENS)
    program = chosen.plan(model, cluster, routing, "fwd", chosen.options(n_sm=8))
    trace = run_burst(program)[0]
    rows = rows_per_slot(routing).reshape(8, -1).sum(axis=1)
    copies = needed_gpus(routing).sum(axis=0)
    mine = np.array([t.operator == "around" for t in program.templates])[program.ops.template]
    took = np.bincount(program.ops.node[mine], weights=(trace.done - trace.ready)[mine], minlength=8) / 1e6
    alone = [around(cluster, model, r, c, permutes=1, fp8_rows=False).device_us for r, c in zip(rows.tolist(), copies.tolist(), strict=True)]
    assert took == pytest.approx(alone, rel=0.02)
    assert took.max() > 1.1 * took.min()
    assert program.n_ops - int(mine.sum()) > 100 * int(mine.sum())  # ops of the other kernels: events of a layer stay


def test_a_merge_has_the_kernels_of_both_layers() -> None:
    model = replace(load_model(MODEL), hidden=512)
    cluster, chosen = load_cluster(CLUSTER).with_gpus(4), get_system("deepep")
    one = chosen.plan(model, cluster, make_routing("uniform", model, 4, 16), "fwd", chosen.options(n_sm=8))
    both = merge([Part("a", one, microbatch=0), Part("b", one, microbatch=1)])
    time = [run_burst(p)[0].time_ps for p in (one, both)]
    assert {"a.around", "b.around"} < set(both.operator_names)
    assert time[0] < time[1] <= 2 * time[0]


def test_both_has_the_surroundings_of_two_passes() -> None:
    """Forward has an activation of its own, backward has it in the epilogue of a GEMM; nothing is charged twice."""
    one, two, both = (ds.run("deepep", direction=direction, **SMALL).surroundings_us for direction in ("fwd", "bwd", "both"))
    assert one["activation_us"] > 0 == two["activation_us"]
    for name in PARTS:
        assert both[name] == pytest.approx(one[name] + two[name])


def test_what_a_system_has_in_its_program_is_not_charged_again() -> None:
    around_of = {name: ds.run(name, **SMALL).surroundings_us for name in ("deepep", "hybrid-ep", "megatron-a2a", "megamoe")}
    assert around_of["deepep"]["permute_us"] > 0
    assert around_of["hybrid-ep"]["permute_us"] == around_of["megatron-a2a"]["permute_us"] == 0
    assert [us for name, us in around_of["megamoe"].items() if name != "host_us"] == [0.0] * 4


@pytest.mark.parametrize("system", sorted(name for name, s in all_systems().items() if s.has_real_form and hasattr(s.options, "compute")))
def test_pure_communication_has_no_surroundings(system: str) -> None:
    assert list(surroundings._pure_communication_has_no_surroundings(SystemCase(get_system(system)))) == []


def test_paper_clusters_have_none() -> None:
    row = ds.run("deepep", model=MODEL, gpus=4, tokens=16)
    assert row.surroundings_us == {}
    assert not {"surroundings_us", "simulated_us", "eager_us"} & set(row.to_dict())
    assert "surroundings_us" not in row.attribution


def test_constants_of_a_cluster_reach_the_surroundings() -> None:
    cluster, model = load_cluster(CLUSTER), load_model(MODEL)
    slow = replace(cluster, constants=(("gpu.kernel_us", 2 * cluster.fitted["gpu.kernel_us"]),))
    one, two = (around(c, model, 100.0, 50.0, permutes=0, fp8_rows=True).launch_us for c in (cluster, slow))
    assert two == pytest.approx(2 * one)
    assert around(cluster, model, 100.0, 50.0, permutes=0, fp8_rows=True, direction="bwd").launch_us == pytest.approx(4 / 3 * one)


def test_values_of_a_cluster_reach_all_of_the_layer() -> None:
    """Half the memory and tensor rate, fewer SMs: not only what the Program has gets slower."""
    cluster = load_cluster(CLUSTER)
    parts = {"hbm_bytes_per_us": cluster.hbm_bytes_per_us // 2, "fp8_flops_per_us": cluster.fp8_flops_per_us // 2, "n_sms": 66}
    slow = replace(cluster, **parts, bf16_flops_per_us=cluster.bf16_flops_per_us // 2)
    model = load_model("deepseek-v3")
    one, two = (around(c, model, 1e4, 5e3, permutes=1, fp8_rows=False) for c in (cluster, slow))
    assert two.activation_us == pytest.approx(2 * one.activation_us)
    assert two.permute_us > 1.9 * one.permute_us
    assert two.cast_us > 1.5 * one.cast_us
    assert slow.own_gpu.fp4_TFLOPS == cluster.own_gpu.fp4_TFLOPS / 2
    fast, late = (ds.run("deepep", **(SMALL | {"cluster": c, "tokens": 512})).simulated_us for c in (cluster, replace(slow, hbm_bytes_per_us=10**9)))
    assert late > fast


@pytest.mark.parametrize("name", [name for name in list_clusters() if name.startswith("hw-")])
def test_packaged_clusters_are_their_gpus(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.own_gpu == load_gpu(cluster.gpu)


def test_a_window_extrapolates_whole_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.runs.known.REFUSED", 1e9)
    row = ds.run("dysharp", model=MODEL, cluster=CLUSTER, gpus=4, tokens=64, fidelity="packet", window=16)
    assert row.time_us == pytest.approx(row.program_us + Surroundings(**row.surroundings_us).device_us)
    assert row.window["time_us"] == pytest.approx(row.time_us + 48 * row.window["us_per_token"])


def test_advice_on_pure_communication_has_nothing_around() -> None:
    best = ds.advise(MODEL, cluster=CLUSTER, tokens=TOKENS, systems=["deepep"], options={"deepep.n_sm": 8, "deepep.compute": False}).best
    assert best.around == Surroundings()
    assert best.time_us == best.row.simulated_us
    assert best.eager_us is None
