"""`dysharp measure`: on this CPU at small sizes, as on a GPU on PyTorch's meta device (shapes and types are checked, nothing is computed), and how
its whole pieces are predicted."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.api import measuring
from dysharp.api.calibration import calibrate
from dysharp.base.errors import ConfigError
from dysharp.measured.cluster_fit import BARE, measurements_of
from dysharp.measured.family import family_of
from dysharp.measured.measurements import Measurement, read_measurements
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu

Call = Callable[..., Any]
MS = 0.5  # between any two events
H100 = "NVIDIA H100 80GB HBM3"


class Event:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return MS


class OnMeta:
    """PyTorch whose CUDA device is the meta device of an H100-like machine with a clock of its own. Without `torch` it makes nothing."""

    cuda = SimpleNamespace(
        Event=Event,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
        graph=nullcontext,
        synchronize=lambda: None,
        get_device_capability=lambda: (9, 0),
    )

    def __init__(self, torch: Any = None) -> None:
        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.torch, name, lambda *args, **named: None)
        if name not in ("randn", "ones", "zeros", "empty", "arange", "tensor"):
            return found
        return lambda *args, device, **named: found(*args, device={"cuda": "meta"}[device], **named)


def rows_of(d: measuring.Device) -> list[Measurement]:
    return [row for part in measuring.PARTS for row in measuring.to_measure(d, part)]


def us_of(row: Measurement, constants: dict[str, float]) -> float:
    """The closed form's time of a row of an H100, or its rate."""
    (one,), skipped = measurements_of([row], "h100-sxm")
    assert skipped == []
    family = family_of(one) or next(bare for bare in BARE if bare.belongs(one))
    case = family.case(one)
    assert family.closed_us
    us = float(np.squeeze(family.closed_us(case, load_gpu(case.gpu), constants)))
    return case.work / us if case.work else us


@pytest.mark.slow
def test_every_measurement_of_one_gpu_is_made() -> None:
    d = measuring.Device(OnMeta(pytest.importorskip("torch")), "cuda")
    rows = rows_of(d)
    assert Counter(row.kind for row in rows) == {
        "gemm_dense": 14, "grouped_gemm_contiguous": 10, "hbm_bandwidth": 1, "kernel_launch": 2, "attention_context": 4, "attention_train_bwd": 4,
        "attention_generation": 3, "rmsnorm": 4, "decoder_block": 4, "decode_step": 4,
    }  # fmt: skip
    times = {row.kind: measuring.CALLS[row.kind](d, row.config) for row in rows}
    assert times["gemm_dense"] == times["decode_step"] == 1e3 * MS / measuring.GRAPH
    assert all(us > 0 for us in times.values())


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """All rows of an H100 whose products, starts and host are known, with 3 % of noise."""
    true = fitted_values() | {"hopper.bf16_sustained": 0.7, "gpu.kernel_us": 2.0, "h100.host_call_us": 6.9}
    rng = np.random.default_rng(0)
    bare = [replace(row, id=f"mine-{n}", value=1.0) for n, row in enumerate(rows_of(measuring.Device(OnMeta(), "cuda", name=H100)))]
    rows = [replace(row, value=us_of(row, true) * rng.normal(1, 0.03)) for row in bare]
    measuring.write_rows(tmp_path / "own.csv", rows)
    return tmp_path / "own.csv"


@pytest.mark.slow
def test_rows_teach_a_machine_and_are_judged_on_it(dysharp: Call, own: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    found = json.loads(dysharp("calibrate", str(own), "-o", str(mine), "--json").out)
    moved = {one["name"]: one for one in found["costs"]}
    assert moved["hopper.bf16_sustained"]["after"] == pytest.approx(0.7, rel=0.02)
    assert moved["h100.host_call_us"]["after"] == pytest.approx(6.9, rel=0.1)
    whole = [one for one in read_measurements(own) if one.kind in ("decoder_block", "decode_step")]
    assert {one.id for one in whole} <= {row["id"] for row in found["rows"]}
    assert not [row for row in found["rows"] if row["contradicts"]]
    rows = json.loads(dysharp("validate", "--data", str(own), "--cluster", str(mine), "--json").out)["rows"]
    errors = {row["id"]: row["error"] for row in rows}
    assert all(abs(errors[one.id]) < 10 for one in whole)


def test_whole_pieces_take_a_little_longer_than_their_products_and_bytes() -> None:
    def us(kind: str, **config: Any) -> float:
        return us_of(Measurement("a", kind, "torch", H100, config | {"dtype": "bf16"}, "latency", 1.0, "us", ""), fitted_values())

    block = {"model": "qwen3-30b", "batch": 2, "tokens": 4096}
    forward, both = (us("decoder_block", **block, **{"pass": way}) for way in ("forward", "forward and backward"))
    assert 2.5 * forward < both < 3.5 * forward
    flops = 2 * 8192 * (2048 * (2 * 4096 + 2 * 512) + 8 * 3 * 2048 * 768) + 2 * 2 * 2 * 4096 * 4096 * 4096 / 2
    assert flops / 989e6 < forward < 2.5 * flops / 989e6
    steps = [us("decode_step", model="llama3-8b", layers=layers, batch=batch, context=4096) for layers, batch in ((1, 8), (4, 8), (4, 64))]
    assert steps[1] == pytest.approx(4 * steps[0])
    read = 4 * (2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336) + 64 * 4096 * 2 * 2 * 1024)
    assert read / 3.35e6 < steps[2] < 1.7 * read / 3.35e6
    with pytest.raises(ConfigError, match=r"found deepseek-v3 \(its attention is not plain grouped queries of 128 elements\)"):
        list(measuring.to_measure(measuring.Device(OnMeta(), "cuda"), "block", ["deepseek-v3"]))


def test_experts_are_those_that_the_router_chose() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    d = measuring.Device(torch, "cpu")
    w = measuring._layer_of(d, "qwen3-30b")
    rows = d.values(24, w.hidden)
    parts, chosen = (rows @ w.router.t()).float().softmax(-1).topk(w.topk)
    expected = torch.zeros(rows.shape)
    for row, (part, experts) in enumerate(zip(parts / parts.sum(-1, keepdim=True), chosen, strict=True)):
        for each, expert in zip(part, experts, strict=True):
            gate, up = (w.first[expert].float() @ rows[row].float()).chunk(2)
            expected[row] += each * (w.second[expert].float() @ (torch.nn.functional.silu(gate) * up))
    assert torch.allclose(measuring._experts(d, w, rows).float(), expected, atol=0.05 * float(expected.abs().max()))


def test_a_run_goes_on_where_it_stopped(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(measuring, "SMALL", 64)
    out = tmp_path / "own.csv"
    args = ("measure", "--only", "decode", "--models", "llama3-8b", "-o", str(out))
    assert "2 left: run it again" in dysharp(*args, "--minutes", "0").out
    assert not out.exists()
    first = dysharp(*args)
    assert first.code == 0
    assert f"written: {out}, 2 rows, 1x CPU" in first.out
    text = out.read_text()
    assert json.loads(dysharp(*args, "--json").out)["rows"] == 2
    assert out.read_text() == text
    assert [row.kind for row in read_measurements(out)] == ["decode_step"] * 2
    with pytest.raises(ConfigError, match="sizes of a machine without a GPU"):
        calibrate(out, tmp_path / "mine.toml")


def test_collectives_need_several_processes(dysharp: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = dysharp("measure", "--only", "collectives", "-o", str(tmp_path / "x.csv"))
    assert done.code == 2
    assert "found collectives and one process, expected torchrun" in done.err
    assert "nothing to write" in dysharp("measure", "--only", "decode", "--minutes", "0", "-o", str(tmp_path / "x.csv")).out


def test_without_torch_one_line_says_so(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = dysharp("measure", "-o", str(tmp_path / "x.csv"))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "found no torch, expected the extra: pip install 'dysharp[torch]'" in done.err
