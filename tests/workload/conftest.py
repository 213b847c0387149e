"""Small models for the workload tests; the modules beside the tests made importable."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dysharp.specs import Model

sys.path.insert(0, str(Path(__file__).parent))


def _model(n_experts: int, topk: int, n_group: int = 1, topk_group: int = 1) -> Model:
    return Model(
        name=f"E{n_experts}-k{topk}",
        hidden=128,
        expert_hidden=64,
        n_experts=n_experts,
        topk=topk,
        tokens_per_gpu=64,
        n_matrices=2,
        element_bytes=2,
        gemm_dtype="fp8",
        n_group=n_group,
        topk_group=topk_group,
    )


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Model]:
    """`make_model(n_experts, topk, n_group, topk_group)`."""
    return _model
