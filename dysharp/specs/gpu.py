"""`Gpu`: the datasheet of one GPU. Fitted constants are a separate table (`fitted.py`)."""

import functools
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dysharp.base import ConfigError, check_word, frozen, nearest, read_toml, show
from dysharp.specs.fields import Constants, LinkRate, Name, Rate, Small, Text, check_fields, problems, raise_if
from dysharp.specs.fitted import overrides_of

GPUS = Path(__file__).parent / "data" / "gpus"
Architecture = Annotated[str, Field(strict=True, pattern="^(ampere|ada|hopper|blackwell|cdna3|cdna4)$")]


@frozen
class Gpu:
    """Datasheet values of one GPU, in the datasheet's units. Raises `ConfigError` for an invalid value."""

    name: Name
    arch: Architecture
    """Selects the fitted constants that differ between architectures."""
    n_sms: Small
    boost_MHz: Rate
    bf16_TFLOPS: Rate
    """Dense tensor peak, as for FP8 and FP4."""
    fp8_TFLOPS: Rate
    fp4_TFLOPS: Rate
    hbm_GBps: Rate
    hbm_GB: Rate
    l2_MB: Rate
    link_GBps: LinkRate
    """Rate of all NVLink or xGMI links of the GPU together, in one direction."""
    source: Text
    pcie: bool = False
    """GPUs reach each other over PCIe alone, at `link_GBps` of the slot."""
    power_W: float = 0.0
    """Power that throttles tensor cores, where no boost clock is known, and of B200, with which it is compared."""
    constants: Constants = ()
    """Fitted constants that published measurements of this GPU replace. No measured row of `measured` has a GEMM of an AMD GPU."""

    def __post_init__(self) -> None:
        check_fields(self, f"gpu {show(self.name)}")

    @property
    def multicasts(self) -> bool:
        """Whether switches between such GPUs copy and add (NVLink SHARP, since Hopper)."""
        return self.arch in ("hopper", "blackwell") and not self.pcie

    @property
    def datasheet(self) -> "Gpu":
        """The packaged GPU of this name, of which a cluster may change rates; the GPU itself where none is packaged."""
        return _packaged(self.name) or self

    def peak_TFLOPS(self, dtype: str) -> float:
        """Dense tensor peak for "bf16", "fp8" or "fp4". Raises `ConfigError` for another `dtype`."""
        peaks = {"bf16": self.bf16_TFLOPS, "fp8": self.fp8_TFLOPS, "fp4": self.fp4_TFLOPS}
        if dtype not in peaks:
            raise ConfigError(f"gpu {show(self.name)}: no peak for dtype {show(dtype)}{nearest(dtype, peaks)}")
        return peaks[dtype]


@functools.cache
def _packaged(name: str) -> Gpu | None:
    return load_gpu(name) if name in list_gpus() else None


def list_gpus() -> list[str]:
    """Names of the GPUs that ship with the package, sorted."""
    return sorted(path.stem for path in GPUS.glob("*.toml"))


@functools.cache
def load_gpu(name: str) -> Gpu:
    """A packaged GPU by name. Raises `ConfigError`."""
    check_word(name, list_gpus(), f"unknown gpu {show(name)}")
    path = GPUS / f"{name}.toml"
    table = read_toml(path)
    table["constants"] = overrides_of(table.get("constants", {}), path.name)
    raise_if(problems(Gpu, table), path.name)
    return Gpu(**table)
