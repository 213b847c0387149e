"""Measurements of a bare GPU and its host: a copy in memory, a small kernel, a launch.

Each of them fixes a constant, so `calibrate` reads them. They judge no prediction, so `validate` leaves them out. Their
families are not registered.
"""

from dataclasses import dataclass

import numpy as np

from dysharp.arrays import F64
from dysharp.compute import moe, operators
from dysharp.measured.config_json import number
from dysharp.measured.family import Case, Constants, Family, Level
from dysharp.measured.measurements import Measurement
from dysharp.measured.scope import gpu_of
from dysharp.specs.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCase(Case):
    """A copy with `n_bytes` of reads and writes in sum."""

    n_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCase(Case):
    """A launch of `calls` empty kernels."""

    calls: float = 1.0


def _copy(m: Measurement) -> CopyCase:
    n_bytes = 2 * number(m, "bytes")
    return CopyCase(gpu=gpu_of(m), n_bytes=n_bytes, work=n_bytes / 1e3, shape="copy")


def _copy_us(case: CopyCase, gpu: Gpu, constants: Constants) -> F64:
    return operators.hbm_us(gpu, constants, case.n_bytes)


def _graph_us(case: LaunchCase, gpu: Gpu, constants: Constants) -> F64:
    return np.asarray(case.calls) * operators.launch_us(gpu, constants)


def _eager_us(case: LaunchCase, gpu: Gpu, constants: Constants) -> F64:
    return np.asarray(case.calls) * moe.host_us(gpu, constants, 1.0)


def _is_launch(m: Measurement, timing: str) -> bool:
    return m.kind == "kernel_launch" and m.unit == "us" and m.config.get("timing") == timing and bool(m.value)


def _is_copy(m: Measurement) -> bool:
    size = m.config.get("bytes")
    return m.kind == "hbm_bandwidth" and m.unit == "GB/s" and isinstance(size, (int, float)) and size > 0


def _graph(m: Measurement) -> LaunchCase:
    return LaunchCase(gpu=gpu_of(m), shape="launch")


def _eager(m: Measurement) -> LaunchCase:
    return LaunchCase(gpu=gpu_of(m), shape="eager launch")


MEMORY = Family("memory", _is_copy, _copy, _copy_us, in_bars=False, level=Level.GPU)
LAUNCH = Family("launch", lambda m: _is_launch(m, "cuda graph"), _graph, _graph_us, in_bars=False, level=Level.GPU)
HOST = Family("host", lambda m: _is_launch(m, "eager"), _eager, _eager_us, in_bars=False, level=Level.GPU)
"""The host's launch time is measured directly and needs no fit."""
BARE = (MEMORY, LAUNCH, HOST)
