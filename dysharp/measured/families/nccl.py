"""NCCL's collectives, by a rate form: above 1 MiB, where a rate decides; beyond the bars up to 1 MiB, through PyTorch, and over several domains."""

import math
import re

import numpy as np

from dysharp.base import F64, f64, frozen_keywords
from dysharp.costs import collectives
from dysharp.measured.family import Case, Constants, family
from dysharp.measured.measurements import GPUS_PER_NODE, Measurement, Unsupported, gpu_of, nic_GBps, number, spans_domains
from dysharp.specs import Gpu

KINDS = ("nccl_all_gather", "nccl_all_reduce", "nccl_reduce_scatter", "nccl_alltoall")
PREFIX, TORCH = "nccl_", "torch_"
SHIFTS = {"K": 10, "M": 20, "G": 30, "KiB": 10, "MiB": 20, "GiB": 30}
MIB = 1 << 20
MOST_BYTES = 16 << 30
"""Bytes of a printed peak, whose starts are hidden."""


@frozen_keywords
class CollectiveCase(Case):
    """One collective of `n_bytes` as nccl-tests counts them. `nvls`: forced on or off; None: NCCL chooses."""

    kind: str
    nvls: bool | None
    in_place: bool
    gpus: float
    n_bytes: float


def _belongs(m: Measurement) -> bool:
    """Whether a measurement is of a collective above 1 MiB. Without a readable size the configuration decides."""
    try:
        return not m.kind.startswith(TORCH) and _kind_of(m) in KINDS and _message_bytes(m) > MIB
    except Unsupported:
        return "large" in str(m.config) or "gpus" in m.config


def _is_small(m: Measurement) -> bool:
    """Whether a measurement is of a collective of at most 1 MiB."""
    try:
        return not m.kind.startswith(TORCH) and _kind_of(m) in KINDS and _message_bytes(m) <= MIB
    except Unsupported:
        return False


def _kind_of(m: Measurement) -> str:
    """The kind of a collective; rows of operators have the kind "nccl" and name the collective in `op`."""
    return PREFIX + str(m.config.get("op", "")) if m.kind == "nccl" else m.kind.removeprefix(TORCH)


def _message_bytes(m: Measurement) -> float:
    """Bytes of a collective: a number, or a label such as "16MiB" or "33M" (nccl-tests prints powers of two so)."""
    if "bytes" in m.config:
        return number(m, "bytes")
    text = str(m.config.get("size") or m.config.get("bytes_label") or "")
    digits = text.rstrip("KMGiB")
    shift = SHIFTS.get(text[len(digits) :])
    if not digits.isdigit() or shift is None:
        raise Unsupported("no message size in config_json")
    if "bytes_label" in m.config:  # decimal label of a power of two: 33M is 2^25
        return float(2 ** round(math.log2(int(digits) * 10 ** (3 * shift // 10))))
    return float(int(digits) << shift)


def _closed_us(case: CollectiveCase, gpu: Gpu, constants: Constants) -> F64:
    """The rate form of `costs.collectives`."""
    return collectives.collective_us(gpu, constants, case.kind, case.gpus, case.n_bytes, nvls=case.nvls, in_place=case.in_place)


@family("nccl-torch", belongs=lambda m: m.kind.startswith(TORCH + PREFIX), closed_us=_closed_us)
@family("nccl-small", belongs=_is_small, closed_us=_closed_us)
@family("nccl", belongs=_belongs, closed_us=_closed_us)
def _case(m: Measurement) -> CollectiveCase:
    """The case of a latency, or of a bus bandwidth as nccl-tests prints it."""
    kind, gpus, gpu = _kind_of(m).removeprefix(PREFIX), number(m, "gpus"), gpu_of(m)
    n_bytes = _message_bytes(m)
    bus_factor = (2 if kind == "all_reduce" else 1) * (gpus - 1) / gpus
    return CollectiveCase(
        gpu=gpu,
        kind=kind,
        nvls=_nvls(m.system),
        in_place=bool(m.config.get("inplace")),
        gpus=gpus,
        n_bytes=n_bytes,
        work=n_bytes * bus_factor / 1e3 if m.unit == "GB/s" else 0.0,
        shape=f"{kind} n={gpus:g}",
    )


def _nvls(system: str) -> bool | None:
    if "NVLS off" in system:
        return False
    return True if "NVLS" in system and "auto" not in system else None


@frozen_keywords
class _FarCase(Case):
    """An alltoall of `n_bytes` on each of `gpus` GPUs in nodes of eight, each with a NIC of `nic` GB/s."""

    gpus: float
    n_bytes: float
    nic: float


def _far_us(case: _FarCase, gpu: Gpu, constants: Constants) -> F64:
    """The start of an alltoall, then rows to the own node over NVLink beside rows to other nodes over the NIC."""
    n, size = f64(case.gpus), f64(case.n_bytes)
    near, far = (GPUS_PER_NODE - 1) / n, (n - GPUS_PER_NODE) / n
    moved = np.maximum(collectives.link_us(gpu, constants, size * near), size * far / (1e3 * np.asarray(case.nic)))
    return np.asarray(collectives.alltoall_start_us(gpu, constants, size, size / n) + moved)


@family("nccl-internode", belongs=lambda m: m.kind == "nccl_alltoall" and spans_domains(m), closed_us=_far_us)
def _far_case(m: Measurement) -> _FarCase:
    """The case of a bus bandwidth at a size that the metric names, or at its peak."""
    gpu, gpus, at = gpu_of(m), number(m, "ep"), re.search(r"at (\d{1,6}) MiB", m.metric)
    n_bytes = float(int(at[1]) * MIB) if at else MOST_BYTES
    return _FarCase(gpu=gpu, gpus=gpus, n_bytes=n_bytes, nic=nic_GBps(gpu), work=n_bytes * (gpus - 1) / gpus / 1e3, shape=f"alltoall n={gpus:g}")
