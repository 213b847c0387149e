"""`Formats`: in which data types a model holds weights and KV, and multiplies."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from dysharp.base.errors import ConfigError, check_word
from dysharp.specs.fields import show


class Format(NamedTuple):
    """A format of weights. `weight_bytes`: bytes of a parameter with its scales; `compute`: type of the GEMM's products."""

    weight_bytes: float
    compute: str


FORMATS = {
    "bf16": Format(2.0, "bf16"), "fp8": Format(1.0, "fp8"), "fp8-block": Format(1.0 + 4.0 / 128**2, "fp8"),
    "mxfp8": Format(1.0 + 1.0 / 32, "mxfp8"),
    "nvfp4": Format(0.5 + 1.0 / 16, "fp4"), "mxfp4": Format(0.5 + 1.0 / 32, "bf16"), "mxfp4-fp8": Format(0.5 + 1.0 / 32, "fp8"),
    "int4": Format(0.5 + 2.0 / 32, "bf16"),
}  # fmt: skip
"""Formats of weights: a scale per 128 x 128 block (DeepSeek-V3), per 16 values (NVFP4), per 32 values (OCP MX; Kimi's INT4)."""
KV_BYTES = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class Formats:
    """Names of `FORMATS` by part of a model, and of `KV_BYTES`. The router and, unless given, embedding and head are BF16."""

    attention: str = "bf16"
    experts: str = "bf16"
    """Routed experts."""
    dense: str = "bf16"
    """Dense and shared FFN."""
    head: str = "bf16"
    kv: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("attention", "experts", "dense", "head"):
            check_word(getattr(self, name), FORMATS, f"precision: {name}: found {show(getattr(self, name))}")
        if self.kv not in KV_BYTES:
            raise ConfigError(f"precision: kv: found {show(self.kv)}, expected bf16 or fp8")

    def of(self, part: str) -> Format:
        """Format of a part of `operators.PARTS`."""
        names = {
            "attention": self.attention,
            "routed experts": self.experts,
            "dense FFN": self.dense,
            "shared experts": self.dense,
            "head": self.head,
            "MTP": self.dense,
        }
        return FORMATS[names.get(part, "bf16")]

    @property
    def kv_bytes(self) -> float:
        """Bytes of a cached value."""
        return KV_BYTES[self.kv]


PRECISIONS = {
    "bf16": Formats(), "fp8": Formats("fp8-block", "fp8-block", "fp8-block"), "fp8-tensor": Formats("fp8", "fp8", "fp8"),
    "fp4": Formats("bf16", "nvfp4", "nvfp4"), "fp4-all": Formats("nvfp4", "nvfp4", "nvfp4"), "mxfp4": Formats("bf16", "mxfp4", "bf16"),
    "mxfp4-fp8": Formats("bf16", "mxfp4-fp8", "bf16"), "int4": Formats("bf16", "int4", "bf16"),
}  # fmt: skip
"""Precision of a checkpoint -> formats. NVFP4 checkpoints of models with latent attention keep attention in BF16 ("fp4");
those of the others quantise every linear layer ("fp4-all")."""


def formats_of(precision: str, kv: str = "bf16") -> Formats:
    """The formats of a named precision. Raises `ConfigError` with the nearest name."""
    check_word(precision, PRECISIONS, f"precision {show(precision)}: unknown")
    return replace(PRECISIONS[precision], kv=kv)

