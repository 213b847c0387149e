"""Every system that runs a collective: right results, engine and oracle agree, declared bytes, not below the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collective_tensors import results

from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.oracle.run import run_oracle
from dysharp.program.verify import verify
from dysharp.specs import Cluster, load_cluster
from dysharp.systems.collectives import all_collectives, get_collective
from dysharp.workload.collective import Collective, even

CASES = [(name, operation) for name, one in all_collectives().items() for operation in one.operations]
UNEVEN = (40_000, 0, 16_386, 2)


def node(gpus: int) -> Cluster:
    return load_cluster("hw-dgx-h100").with_gpus(gpus)


def two_nodes() -> Cluster:
    cluster = load_cluster("hw-dgx-h100-x2")
    return replace(cluster, n_gpus=4, scale_out=replace(cluster.scale_out, domain_gpus=2))


def works(name: str, operation: str) -> list[tuple[Collective, Cluster]]:
    one = get_collective(name)
    found = [(even(operation, 4 * 40_000, 4), node(4)), (even(operation, 2, 2), node(2)), (even(operation, 600, 1), node(1))]
    found += [(Collective(operation, UNEVEN), node(4))] * one.uneven
    return found + [(even(operation, 4 * 40_000, 4), two_nodes())] * one.domains


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "operation"), CASES)
def test_results_are_those_of_the_reference_and_engine_and_oracle_agree(name: str, operation: str) -> None:
    one = get_collective(name)
    for work, cluster in works(name, operation):
        program = one.plan(work, cluster, one.options())
        verify(program)  # declared bytes on the links among others
        trace = run_burst(program)[0]
        assert run_oracle(program).digest() == trace.digest()
        for found, expected in zip(results(work, program, trace), work.reference(work.inputs(0)), strict=True):
            assert np.array_equal(found, expected), (work, cluster.name)


@pytest.mark.parametrize(("name", "operation"), CASES)
def test_no_system_is_faster_than_the_bytes_of_the_busiest_gpu(name: str, operation: str) -> None:
    one, work, cluster = get_collective(name), even(operation, 8 << 20, 4), node(4)
    least = max(work.least_bytes(in_switch=bool(one.switch)))
    assert run_burst(one.plan(work, cluster, one.options()))[0].time_ps > 1e6 * least / cluster.link_bytes_per_us


@pytest.mark.parametrize("name", all_collectives())
def test_other_operations_and_machines_are_refused(name: str) -> None:
    one = get_collective(name)
    operation = one.operations[0]
    with pytest.raises(ConfigError, match="found shares of 2 GPUs, expected those of 4 GPUs"):
        one.plan(even(operation, 64, 2), node(4), one.options())
    if not one.domains:
        with pytest.raises(ConfigError, match="found 2 NVLink domains, expected one"):
            one.plan(even(operation, 64, 4), two_nodes(), one.options())
    others = {"all-reduce", "all-to-all"} - {*one.operations}
    for other in others:
        with pytest.raises(ConfigError, match=f"found {other}, expected "):
            one.plan(even(other, 64, 4), node(4), one.options())


def test_an_unknown_system_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"nccl-rings.*nccl-ring"):
        get_collective("nccl-rings")
