"""The memory estimate, by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from dysharp.api.memory import estimate_bytes
from dysharp.api.request import Request
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.units import MiB

# 8 GPUs x 16 tokens, top-2: 128 tokens, 256 rows, 128 x 8 x (1 - (7/8)^2) = 240 pairs of token and GPU
TOKENS, ROWS, PAIRS, GPUS = 128, 256, 240, 8


@pytest.mark.parametrize(
    ("system", "ops", "members"),
    [
        ("deepep", 2 * PAIRS, 2 * PAIRS),
        ("dysharp", 2 * TOKENS, 2 * PAIRS),
        ("nvls", 2 * TOKENS, 2 * TOKENS * GPUS),
        ("megatron-ag", 2 * TOKENS * GPUS, 2 * TOKENS * GPUS),
        ("ideal", 0, 0),
    ],
)
def test_estimate(system: str, ops: int, members: int) -> None:
    model = replace(load_model("S-8"), topk=2)
    cluster = replace(load_cluster("paper-dgx-h100"), n_gpus=GPUS)
    request = Request(**dict.fromkeys((f.name for f in fields(Request)), None) | {"model": model, "cluster": cluster, "tokens": 16})  # type: ignore[arg-type]
    assert estimate_bytes(get_system(system), request) == 300 * MiB + 260 * ops + 55 * members + 65 * ROWS
