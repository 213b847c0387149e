"""Numbers that are cited from a library, and what all steps of software have in common."""

from __future__ import annotations

import pytest

from dysharp.program import Kind
from dysharp.specs import load_cluster, load_model
from dysharp.systems import all_systems, get_system, hybrid_ep
from dysharp.systems.building.between import deepep_internode
from dysharp.workload import make_routing


def test_defaults_of_hybrid_ep() -> None:
    """DeepEP, branch hybrid-ep: tokens of a chunk, rows in flight of an SM, an FP32 probability."""
    assert (hybrid_ep.CHUNK_TOKENS, hybrid_ep.IN_FLIGHT, hybrid_ep.PROB_BYTES) == (64, {"store": 8, "read": 10}, 4)


def test_defaults_of_deepep_between_nodes() -> None:
    """DeepEP, `deep_ep/buffers/legacy.py`: rows of an RDMA ring; rows per RDMA write by GPUs, Dispatch and Combine."""
    assert deepep_internode.RING_ROWS == 128
    assert deepep_internode.CHUNK == {16: (20, 12), 64: (8, 8), 1024: (12, 8)}


@pytest.mark.parametrize("name", [n for n in all_systems() if get_system(n).has_real_form])
def test_software_steps_move_no_data(name: str) -> None:
    """A step of software is an op of kind DELAY with fn "delay", or "beside" around GEMMs; its operator is one that a Row knows."""
    system, model = get_system(name), load_model("S-8")
    cluster = load_cluster("hw-dgx-h100")
    program = system.plan(model, cluster, make_routing("uniform", model, cluster.n_gpus, 4), "fwd", system.options(form="real"))
    delays = [t for t in program.templates if t.kind is Kind.DELAY]
    assert delays
    assert {t.fn for t in delays} <= {"delay", "beside", ""}
    assert {t.operator for t in delays} <= {"dispatch", "combine", "gemm1", "gemm2", "around", "other"}
