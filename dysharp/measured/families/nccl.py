"""NCCL's collectives, by a rate form: above 1 MiB, where a rate decides, and beyond the bars up to 1 MiB, where starts and hops do."""

import math
from dataclasses import dataclass

from dysharp.arrays import F64
from dysharp.compute import collectives
from dysharp.measured.config_json import number
from dysharp.measured.family import Case, Constants, Level, family
from dysharp.measured.measurements import Measurement, Unsupported
from dysharp.measured.scope import gpu_of
from dysharp.specs.gpu import Gpu

KINDS = ("nccl_all_gather", "nccl_all_reduce", "nccl_reduce_scatter", "nccl_alltoall")
PREFIX = "nccl_"
SHIFTS = {"K": 10, "M": 20, "G": 30, "KiB": 10, "MiB": 20, "GiB": 30}
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCase(Case):
    """One collective of `n_bytes` as nccl-tests counts them. `nvls`: forced on or off; None: NCCL chooses."""

    kind: str
    nvls: bool | None
    in_place: bool
    gpus: float
    n_bytes: float


def belongs(m: Measurement) -> bool:
    """Whether a measurement is of a collective above 1 MiB. Without a readable size the configuration decides."""
    try:
        return kind_of(m) in KINDS and message_bytes(m) > MIB
    except Unsupported:
        return "large" in str(m.config) or "gpus" in m.config


def is_small(m: Measurement) -> bool:
    """Whether a measurement is of a collective of at most 1 MiB."""
    try:
        return kind_of(m) in KINDS and message_bytes(m) <= MIB
    except Unsupported:
        return False


def kind_of(m: Measurement) -> str:
    """The kind of a collective; rows of operators have the kind "nccl" and name the collective in `op`."""
    return PREFIX + str(m.config.get("op", "")) if m.kind == "nccl" else m.kind


def message_bytes(m: Measurement) -> float:
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


def closed_us(case: CollectiveCase, gpu: Gpu, constants: Constants) -> F64:
    """The rate form of `compute.collectives`."""
    return collectives.collective_us(gpu, constants, case.kind, case.gpus, case.n_bytes, nvls=case.nvls, in_place=case.in_place)


@family("nccl-small", belongs=is_small, closed_us=closed_us, in_bars=False, level=Level.LINK, order=105)
@family(
    "nccl", belongs=belongs, closed_us=closed_us, level=Level.LINK, order=50, systems=("megatron-a2a", "megatron-ag"), parts=("dispatch", "combine")
)
def case(m: Measurement) -> CollectiveCase:
    """The case of a latency, or of a bus bandwidth as nccl-tests prints it."""
    kind, gpus, gpu = kind_of(m).removeprefix(PREFIX), number(m, "gpus"), gpu_of(m)
    n_bytes = message_bytes(m)
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
