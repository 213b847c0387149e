"""Readers of numbers, data types and labels in `config_json`. Each reader raises `Unsupported` with the reason."""

import math
import re
from collections.abc import Mapping

from dysharp.measured.measurements import Measurement, Unsupported

SCALED_FP8, SCALED_FP4 = 1 + 4 / 128, 0.5 * (1 + 1 / 8)
"""Bytes per value of FP8 with an FP32 scale per 128 values, and of NVFP4 with an FP8 scale per 16 values."""
DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "float8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp4": "fp4"}
"""First word of a data type in `config_json` -> name of the data type in this package."""
LIMITS: Mapping[str, tuple[int, int]] = {
    "tokens_per_rank": (1, 1 << 20),
    "hidden": (128, 1 << 16),
    "inter": (128, 1 << 16),
    "ffn": (128, 1 << 18),
    "ep": (2, 1024),
    "gpus": (2, 1024),
    "experts": (1, 1 << 16),
    "local_experts": (1, 1 << 12),
    "topk": (1, 128),
    "topk_groups": (1, 1024),
    "sms": (1, 256),
    "moe_comm_sms": (1, 256),
    "m": (1, 1 << 24),
    "n": (1, 1 << 20),
    "k": (1, 1 << 20),
    "m_per_group": (1, 1 << 20),
    "rows_per_expert": (1, 1 << 20),
    "groups": (1, 1 << 12),
    "bytes": (1, 1 << 40),
    "ctas": (1, 1024),
    "batch": (1, 1 << 20),
    "q_len": (1, 1 << 24),
    "past_len": (0, 1 << 24),
    "heads": (1, 1 << 12),
    "kv_heads": (1, 1 << 12),
    "head_dim": (1, 1 << 12),
    "qk_dim": (1, 1 << 12),
    "v_dim": (1, 1 << 12),
    "window": (0, 1 << 24),
    "batch_size": (1, 1 << 20),
    "isl": (1, 1 << 24),
    "num_heads": (1, 1 << 12),
}
"""Key of a number in `config_json` -> smallest and largest value that is predicted."""


def number(m: Measurement, key: str) -> float:
    """A number of the configuration. Raises `Unsupported` outside `LIMITS`; a key outside that table has no limits."""
    value = m.config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unsupported(f"no number {key!r} in config_json")
    low, high = LIMITS.get(key, (0, math.inf))
    if not low <= value <= high:
        raise Unsupported(f"{key} {value:g}, expected {low} to {high}")
    return float(value)


def whole(value: float, name: str) -> int:
    """`value` as a whole number of at least 1. `name`: the things counted, for the error."""
    if value != math.floor(value) or value < 1:
        raise Unsupported(f"no whole number of {name}")
    return int(value)


def experts_of(m: Measurement, gpus: float) -> float:
    """Experts of all GPUs."""
    return number(m, "local_experts") * gpus if "local_experts" in m.config else number(m, "experts")


def dtype_of(m: Measurement, *keys: str, expected: tuple[str, ...], default: str | None = None) -> str:
    """The data type under the first of `keys` that is present, such as "fp8" for "fp8_e4m3+fp32 scale/128"."""
    text = next((m.config[key] for key in keys if m.config.get(key) is not None), default)
    if text is None:
        raise Unsupported(f"no {' or '.join(map(repr, keys))} in config_json, expected {' or '.join(expected)}")
    word = re.match(r"[a-z]+[0-9]+(?![a-z0-9])", str(text).lower())
    dtype = DTYPES.get(word[0], "") if word else ""
    if dtype not in expected:
        raise Unsupported(f"{keys[0]} {str(text)[:40]!r}, expected {' or '.join(expected)}")
    return dtype


def label(m: Measurement, *keys: str) -> str:
    """The values of `keys` as one text; keys that are absent are left out."""
    return " ".join(f"{key}={m.config[key]}" for key in keys if key in m.config)


def is_weak(m: Measurement) -> bool:
    """Whether the collector of a measurement marks it as weak."""
    return str(m.config.get("quality", "")).startswith("WEAK")
