"""Where NCCL's all-reduce and a multimem kernel of the same source take equal times, measured and predicted.

Why the sources differ: vLLM copies a vector into a symmetric buffer and out of it, so its multimem pays two kernels through memory that grow with
the size. TokenWeave's tensors are in symmetric memory, and NCCL's NVLS moves the same bytes with two more copies per chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache

import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.measured.measurements import read_measurements
from dysharp.specs import load_cluster
from dysharp.systems.collectives import get_collective
from dysharp.workload.collective import even

MIB = 1 << 20
VLLM = "github.com/vllm-project/vllm/pull/42324"


@cache
def took_us(name: str, operation: str, size: int, **options: object) -> float:
    one, node = get_collective(name), load_cluster("hw-dgx-h100")
    return run_burst(one.plan(even(operation, size, 8), node, one.options(**options)))[0].time_ps / 1e6


def crossing(ncclless: Mapping[int, float]) -> list[int]:
    """The sizes from which NCCL is faster: `ncclless` is the time of multimem less NCCL's by size, rising sizes."""
    sizes = sorted(ncclless)
    return [b for a, b in itertools.pairwise(sizes) if ncclless[a] < 0 <= ncclless[b]]


def of_tokenweave(operation: str, kind: str) -> dict[int, float]:
    rows = [m for m in read_measurements() if m.id.startswith("tw-") and m.kind == f"{kind}_{operation.replace('-', '_')}"]
    return {int(m.config["bytes"]): m.value for m in sorted(rows, key=lambda m: "figure_5" in m.source) if m.value}


def test_on_tokenweaves_rows_multimem_all_reduces_never_cross_nccls() -> None:
    nccl, multimem = (of_tokenweave("all-reduce", kind) for kind in ("torch_nccl", "multimem"))
    assert len(nccl) == 10
    assert all(multimem[size] < nccl[size] for size in nccl)
    for size in [1 << i for i in range(20, 29)]:
        assert took_us("nvls-two-shot", "all-reduce", size, late=True) < took_us("nccl", "all-reduce", size)


def test_on_vllms_rows_they_cross_at_64_mib_within_a_factor_of_two() -> None:
    rows = [m for m in read_measurements() if m.kind == "inswitch_allreduce" and m.source.startswith(VLLM)]
    sizes = {m.id: _bytes(m.config) for m in rows}
    measured = {name: {sizes[m.id]: m.value for m in rows if m.system == name and m.value} for name in ("pynccl", "multimem (torch symm mem)")}
    gap = {size: took - measured["pynccl"][size] for size, took in measured["multimem (torch symm mem)"].items()}
    assert crossing(gap) == [64 * MIB]
    predicted = {size: took_us("allreduce-torch-multimem", "all-reduce", size) - took_us("nccl", "all-reduce", size) for size in gap if size >= MIB}
    (found,) = crossing(predicted)
    assert 32 * MIB <= found <= 128 * MIB


def _bytes(config: Mapping[str, object]) -> int:
    return int(config["bytes"]) if "bytes" in config else round(float(str(config["size"])[:-3]) * {"K": 1 << 10, "M": MIB}[str(config["size"])[-3]])


@pytest.mark.parametrize("operation", ["reduce-scatter", "all-gather"])
def test_rings_catch_up_with_multimem_where_the_links_are_busy(operation: str) -> None:
    """NCCL's ring reaches 0.82 of a link, multimem in one direction 0.80. Measured from 256 and 512 MiB on, predicted from 128 MiB on."""
    nccl, multimem = (of_tokenweave(operation, kind) for kind in ("torch_nccl", "multimem"))
    (found,) = crossing({size: multimem[size] - nccl[size] for size in nccl})
    assert found == (256 if operation == "reduce-scatter" else 512) * MIB
    sizes = [1 << i for i in range(20, 29)]
    (guess,) = crossing({size: took_us("nvls-two-shot", operation, size, late=True) - took_us("nccl", operation, size) for size in sizes})
    assert found / 4 <= guess <= found
