"""`examples/measure_gpu.py` without a GPU: every call it makes, on PyTorch's meta device (shapes and types are checked, nothing is computed)."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dysharp.measured.cluster_fit import measurements_of
from dysharp.measured.measurements import read_measurements

torch = pytest.importorskip("torch")
MS = 0.5  # between any two events


class Event:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return MS


class OnMeta:
    """PyTorch whose CUDA device is the meta device of an H100-like machine with a clock of its own."""

    cuda = SimpleNamespace(
        Event=Event,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
        graph=nullcontext,
        synchronize=lambda: None,
        get_device_capability=lambda: (9, 0),
    )

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("randn", "ones", "zeros", "empty", "arange"):
            return found
        return lambda *args, device, **named: found(*args, device={"cuda": "meta"}[device], **named)


def test_every_measurement_of_one_gpu_is_made_and_used(measure: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = (measure.gemms, measure.grouped_gemms, measure.attention, measure.norms, measure.memory, measure.launches)
    rows = [row for part in parts for row in part(OnMeta())]
    assert capsys.readouterr().err == ""  # no grouped GEMM would be said there
    n_dense, n_grouped = 2 * len(measure.GEMMS), len(measure.GROUPED) * len(measure.EXPERT)
    assert Counter(row.kind for row in rows) == {
        "gemm_dense": n_dense, "grouped_gemm_contiguous": n_grouped, "hbm_bandwidth": 1, "kernel_launch": 2,
        "attention_context": len(measure.PREFILL), "attention_train_bwd": len(measure.PREFILL), "attention_generation": len(measure.DECODE),
        "rmsnorm": len(measure.NORM_WIDTHS),
    }
    times = {row.value for row in rows if row.kind in ("gemm_dense", "grouped_gemm_contiguous")}
    assert times == {1e3 * MS / measure.GRAPH}
    path = tmp_path / "own.csv"
    measure.write_csv(path, rows, "1x NVIDIA H100 80GB HBM3", "a test")
    used, skipped = measurements_of(read_measurements(path), "h100-sxm")
    assert (len(used), skipped) == (len(rows), [])

