"""Programs of the EP kernels against their closed forms, the line through two runs, and measurements where they are at hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from dysharp.costs import transfer
from dysharp.measured import ep_kernels
from dysharp.measured.ep_kernels import EpCase, kernel_times
from dysharp.measured.families import fused_layer, hybrid_ep
from dysharp.measured.families.deepep import DeepEpCase
from dysharp.measured.families.deepep_ll import LowLatencyCase
from dysharp.measured.families.fused_layer import FusedCase, _loaded_routing
from dysharp.measured.families.hybrid_ep import _HybridCase
from dysharp.measured.families.trtllm_a2a import TrtllmCase, balanced
from dysharp.measured.family import Parsed, classify
from dysharp.specs import Model
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from dysharp.workload import expected_copies

CONSTANTS = fitted_values()
EVERY = 3  # measurements of those that are run here


def fields(gpu: str, gpus: int, hidden: int, experts: int, tokens: int) -> dict:
    return {"gpu": gpu, "gpus": gpus, "hidden": hidden, "experts": experts, "topk": 8, "tokens": tokens, "verb": "dispatch"}


def deepep(n_sm: int, *layout) -> DeepEpCase:
    return DeepEpCase(**fields(*layout), n_sm=n_sm, fp8=True, copies=0.0, row_bytes=0.0)


def low_latency(*layout) -> LowLatencyCase:
    return LowLatencyCase(**fields(*layout), fp8=True, row_bytes=0.0)


def trtllm(sides: str, *layout, payload: str = "rows", back: str = "rows") -> TrtllmCase:
    return TrtllmCase(**fields(*layout), sides=sides, payload=payload, back=back, copies=8.0, row_bytes=0.0)


def times_of(case: EpCase) -> tuple[float, float, float]:
    """(prepare, dispatch, combine) in us."""
    system = {DeepEpCase: "deepep", LowLatencyCase: "deepep-ll", TrtllmCase: "trtllm-a2a"}[type(case)]
    more = (balanced,) if isinstance(case, TrtllmCase) else ()
    return tuple(kernel_times(system, case, CONSTANTS, *more).values())


def hybrid_times(case: _HybridCase) -> list[float]:
    """[dispatch, combine] in us."""
    return [hybrid_ep.program_us(replace(case, verb=verb), CONSTANTS) for verb in ("dispatch", "combine")]


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200"])
@pytest.mark.parametrize(("experts", "hidden"), [(128, 2048), (256, 7168)])
def test_low_latency_agrees_with_its_closed_form(gpu: str, experts: int, hidden: int) -> None:
    """Within 2 % in Dispatch. Combine up to 10 %: random routing loads GPUs unevenly, which shows in few tokens, and the form has a mean GPU."""
    constants, machine = CONSTANTS, load_gpu(gpu)
    for tokens in (1, 32, 128, 512, 1024):
        dispatch, combine = times_of(low_latency(gpu, 8, hidden, experts, tokens))[1:]
        shape = (tokens, 8)
        there = transfer.ll_dispatch_us(machine, constants, *shape, hidden * (1 + 4 / 128), experts, 8)
        back = transfer.ll_combine_us(machine, constants, *shape, 2 * hidden, experts, 8)
        assert dispatch == pytest.approx(float(there), rel=0.02)
        assert combine == pytest.approx(float(back), rel=0.10)


@pytest.mark.parametrize("gpus", [4, 8])
@pytest.mark.parametrize("tokens", [1, 128, 1024])
def test_all_to_all_agrees_with_its_closed_form(gpus: int, tokens: int) -> None:
    """Balanced routing, 7168 wide, BF16: within 3 %, and 1 % where rows are read (one-sided Combine)."""
    constants, machine = CONSTANTS, load_gpu("gb200")
    shape = (tokens, gpus, 14336, gpus)
    layout = ("gb200", gpus, 7168, 256, tokens)
    prepare, dispatch, combine = times_of(trtllm("two", *layout))
    assert prepare == pytest.approx(float(transfer.alltoall_prepare_us(machine, constants, tokens, gpus)), rel=0.01)
    copy = transfer.fifo_copy_us(machine, constants, 14336, gpus)
    assert dispatch == pytest.approx(float(transfer.alltoall_two_sided_us(machine, constants, *shape, copy)), rel=0.03)
    summed = transfer.summed_bytes(14336, 8)
    assert combine == pytest.approx(float(transfer.alltoall_two_sided_us(machine, constants, *shape, copy, summed)), rel=0.03)
    none, dispatch, combine = times_of(trtllm("one", *layout))
    closed = float(transfer.alltoall_one_sided_us(machine, constants, *shape))
    reads = float(transfer.alltoall_one_sided_us(machine, constants, *shape, reads=True))
    assert none == 0
    assert dispatch == pytest.approx(closed, rel=0.03)
    assert combine == pytest.approx(reads, rel=0.01)


@pytest.mark.parametrize("tokens", [1, 256])
def test_low_precision_combine_agrees_with_its_closed_form(tokens: int) -> None:
    machine = load_gpu("gb200")
    row_bytes = 7168 // 2 + 7168 // 16
    _, _, combine = times_of(trtllm("two", "gb200", 8, 7168, 256, tokens, payload="nvfp4", back="nvfp4"))
    copy = transfer.fifo_copy_us(machine, CONSTANTS, row_bytes, 8, low_precision=True)
    closed = transfer.alltoall_two_sided_us(machine, CONSTANTS, tokens, 8, row_bytes, 8, copy, transfer.summed_bytes(14336, 8))
    assert combine == pytest.approx(float(closed), rel=0.03)


OVER_FORM = {
    ("h100-sxm", 4): ((0.992, 1.045), (1.001, 1.024)), ("h100-sxm", 24): ((0.991, 1.206), (0.885, 1.042)),
    ("gb200", 4): ((1.017, 1.047), (1.015, 1.002)), ("gb200", 24): ((1.010, 1.088), (1.018, 1.014)),
}  # fmt: skip
"""(GPU, SMs) -> Program over closed form of Dispatch and Combine, with 128 and with 1024 tokens."""


@pytest.mark.parametrize(("gpu", "n_sm"), OVER_FORM)
def test_normal_kernels_agree_with_their_closed_form(gpu: str, n_sm: int) -> None:
    """The slowest of many channels and GPUs ends a call, and a reducer with few tokens works in whole rounds of its warps."""
    gpus = 8 if gpu == "h100-sxm" else 4
    for tokens, over in zip((128, 1024), OVER_FORM[gpu, n_sm], strict=True):
        dispatch, combine = times_of(deepep(n_sm, gpu, gpus, 4096, 128, tokens))[1:]
        copies = expected_copies(gpus, 128, 8)
        shape = (tokens, copies)
        there = transfer.deepep_dispatch_us(load_gpu(gpu), CONSTANTS, *shape, 4096 * (1 + 4 / 128), n_sm, gpus)
        back = transfer.deepep_combine_us(load_gpu(gpu), CONSTANTS, *shape, 8192, n_sm, gpus)
        assert (dispatch / float(there), combine / float(back)) == pytest.approx(over, abs=0.005)


@pytest.mark.slow
def test_the_line_through_two_runs_is_that_of_a_full_run(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = ("h100-sxm", 8, 2048, 128, 1536)
    cases = deepep(20, *layout), low_latency(*layout), trtllm("one", *layout)
    lines = [times_of(case) for case in cases]
    monkeypatch.setattr(ep_kernels, "FAR", 1536)
    full = [times_of(case) for case in cases]
    for line, run in zip(lines, full, strict=True):
        assert line == pytest.approx(run, rel=0.035)  # 3.2 % at one point, docs/deviations.md


def test_many_gpus_run_fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    case = trtllm("one", "gb200", 32, 2048, 128, 320)
    line = times_of(case)
    monkeypatch.setattr(ep_kernels, "MANY_GPUS", 32)
    assert line == pytest.approx(times_of(case), rel=0.02)


@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_balanced_routing_is_that_of_the_benchmark(gpus: int) -> None:
    """As many copies everywhere; eight consecutive GPUs per token, or all of them."""
    routing = balanced(Model("measured", 1024, 128, 256, 8, 32, 2, 2, "bf16"), gpus, 32)
    gpu = routing.slot // routing.placement.slots_per_gpu
    copies = np.array([len(set(row)) for row in gpu.tolist()])
    assert (copies == min(8, gpus)).all()
    assert (np.bincount(gpu.ravel(), minlength=gpus) == 32 * 8).all()
    assert all(len(set(row)) == 8 for row in routing.expert.tolist())


def fused(**changes) -> FusedCase:
    return FusedCase(gpu="b200", gpus=4, hidden=2048, inter=1024, experts=32, topk=8, **changes)


def test_the_lines_of_hybrid_ep_and_mega_moe_are_those_of_full_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hybrid-EP where SMs take more and larger chunks; Mega MoE where an expert has many tiles."""
    case = _HybridCase(**fields("b200", 4, 2048, 32, 3 * 4 * 64), n_sm=4, fp8=True)
    layer = fused(tokens=3072)
    monkeypatch.setattr(fused_layer, "NEAR", 1024)
    monkeypatch.setattr(fused_layer, "FAR", 2048)
    lines = [*hybrid_times(case), fused_layer.program_us(layer, CONSTANTS)]
    monkeypatch.setattr(hybrid_ep, "CHUNK_TOKENS", 96)
    monkeypatch.setattr(fused_layer, "FAR", 3072)
    full = [*hybrid_times(case), fused_layer.program_us(layer, CONSTANTS)]
    assert lines == pytest.approx(full, rel=0.03)


def test_a_routing_has_the_loads_that_are_asked_for() -> None:
    """In proportion, no expert twice in a token, none with more rows than tokens; few rows go to the experts with the largest shares."""
    loads = np.array([400.0, 200.0, 100.0, 50.0, 25.0, 13.0, 8.0, 4.0])
    routing = _loaded_routing(loads, 4, 2, 100)
    counts = np.bincount(routing.expert.ravel(), minlength=8)
    assert counts.tolist() == loads.tolist()
    few = _loaded_routing(loads, 4, 2, 1)
    assert np.bincount(few.expert.ravel(), minlength=8).tolist() == [4, 2, 1, 1, 0, 0, 0, 0]


def test_a_power_law_is_slower_than_experts_in_turn_and_a_kernel_alone_faster() -> None:
    changes = {}, {"distribution": "power_law_1.01"}, {"cast": False}
    cases = [replace(fused(tokens=256, distribution="balanced"), **changed) for changed in changes]
    turn, law, alone = (fused_layer.program_us(case, CONSTANTS) for case in cases)
    assert alone < turn < law


def _errors(parsed: list[Parsed], capsys: pytest.CaptureFixture[str]) -> dict[str, np.ndarray]:
    """Signed errors of the Programs' times by system and hardware, printed."""
    out: dict[str, list[float]] = defaultdict(list)
    for entry in parsed:
        m, work = entry.measurement, entry.case.work
        measured_us = work / m.value if work else m.value * m.us_per_unit
        out[f"{m.system}, {m.hardware}"].append(entry.family.program_us(entry.case, CONSTANTS) / measured_us - 1)
    with capsys.disabled():
        print()
        for name, errors in sorted(out.items()):
            print(f"{name}: n {len(errors)}, signed median {np.median(errors):+.1%}, p90 {np.quantile(np.abs(errors), 0.9):.1%}")
    return {name: np.array(errors) for name, errors in out.items()}


@pytest.mark.slow
def test_hybrid_ep_against_measurements(packaged_measurements, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels alone on 8 and 36 GPUs of one domain: rows at both ends fixed the time of a look, `hybrid.rank_us`."""
    rows = [m for m in packaged_measurements if m.system in ("Hybrid-EP", "HybridEP") and "B200" in m.hardware]
    parsed = [entry for entry in classify(rows).parsed if (entry.case.gpus, entry.case.n_sm) in ((8, 16), (8, 32), (36, 16))]
    assert len(parsed) == 12
    errors = np.concatenate(list(_errors(parsed, capsys).values()))
    assert np.median(np.abs(errors)) <= 0.08
    assert np.abs(errors).max() <= 0.14


@pytest.mark.slow
def test_mega_moe_against_measurements(packaged_measurements, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers of up to 2048 tokens per GPU as serving frameworks call them (input cast included)."""
    systems = ("MegaMoE deep_gemm", "MegaMoE deep_gemm_mega", "DeepGEMM MegaMoE (SGLang module)")
    rows = []
    for m in packaged_measurements:
        if m.system in systems and m.config["ep"] <= 16 and m.config["tokens_per_rank"] <= 2048:
            rows += [m] if m.config.get("distribution", "random") in ("random", "balanced") else []
    parsed = classify(rows[::EVERY]).parsed
    assert len(parsed) == len(rows[::EVERY])
    for errors in _errors(list(parsed), capsys).values():
        assert abs(np.median(errors)) <= 0.15
        assert np.quantile(np.abs(errors), 0.9) <= 0.25
