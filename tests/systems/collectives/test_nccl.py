"""NCCL: Programs against closed forms, and the public facts about its choice of algorithm and protocol."""

from __future__ import annotations

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.costs.collectives import collective_us, in_switch, nvls_loads, rail_rings_us
from dysharp.engine.burst.run import run_burst
from dysharp.measured.measurements import read_measurements
from dysharp.specs import Cluster, load_cluster
from dysharp.systems.collectives import get_collective
from dysharp.workload.collective import even

KIB, MIB = 1 << 10, 1 << 20
KINDS = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "all-to-all": "alltoall"}


def took_us(name: str, operation: str, size: int, cluster: Cluster, **options: object) -> float:
    one = get_collective(name)
    return run_burst(one.plan(even(operation, size, cluster.n_gpus), cluster, one.options(**options)))[0].time_ps / 1e6


def choice(size: int, cluster: Cluster, operation: str = "all-reduce", **options: object) -> str:
    one = get_collective("nccl")
    (said,) = one.says(even(operation, size, cluster.n_gpus), cluster, one.options(**options))
    return said.removeprefix("NCCL's tuner takes ").replace(" with protocol", "")


@pytest.mark.parametrize("operation", KINDS)
@pytest.mark.parametrize(("cluster", "gpus"), [("hw-dgx-h100", 8), ("hw-dgx-h100", 4), ("hw-dgx-b200", 8)])
def test_programs_take_the_time_of_the_closed_form(operation: str, cluster: str, gpus: int) -> None:
    """Within 1 %; NVLS, whose last turn is a whole one and whose turns overlap in parts, within 5 %."""
    machine = load_cluster(cluster).with_gpus(gpus)
    for size in (64 * KIB, 1 * MIB, 4 * MIB, 64 * MIB):
        closed = float(collective_us(machine.own_gpu, machine.fitted, KINDS[operation], gpus, size))
        within = 0.05 if operation == "all-reduce" and choice(size, machine).startswith("nvls") else 0.01
        assert took_us("nccl", operation, size, machine) == pytest.approx(closed, rel=within), size


def test_rings_over_two_nodes_take_the_time_of_the_closed_form_where_nics_are_busy() -> None:
    """Within 6 % at 256 MiB. With little data a step through the network takes the latency of the NIC, which is longer than the tuner's."""
    cluster = load_cluster("hw-dgx-h100-x2")
    rate = cluster.scale_out.rate / 1000
    for operation in ("all-gather", "reduce-scatter"):
        start, moved, _ = rail_rings_us(cluster.own_gpu, cluster.fitted, 8, 2, rate, 256 * MIB)
        assert took_us("nccl-ring", operation, 256 * MIB, cluster, protocol="simple") == pytest.approx(start + moved, rel=0.06)


def test_on_an_h100_node_all_reduces_take_rings_with_ll_to_1_mib_and_nvls_from_2_mib() -> None:
    """nccl-tests#309."""
    node = load_cluster("hw-dgx-h100")
    assert {choice(1 << i, node) for i in range(3, 21)} == {"ring ll"}
    assert {choice(1 << i, node) for i in range(21, 34)} == {"nvls simple"}
    assert choice(64 * MIB, node, "all-gather") == "ring simple"


@pytest.mark.parametrize(("cluster", "gpus", "loads"), [("hw-dgx-h100", 8, 320), ("hw-dgx-h100", 6, 448), ("hw-dgx-b200", 8, 640)])
def test_a_gpu_of_nvls_has_no_more_loads_under_way_than_its_threads_hold(cluster: str, gpus: int, loads: int) -> None:
    """KiB: 16 or 32 channels x 5 or 7 warps x 32 threads x 8 loads x 16 B."""
    node, one = load_cluster(cluster).with_gpus(gpus), get_collective("nccl-nvls")
    program = one.plan(even("all-reduce", 16 * MIB, gpus), node, one.options())
    assert nvls_loads(node.own_gpu, gpus) == loads * KIB
    assert set(program.semaphores.capacity.tolist()) == {loads * KIB // program.hardware.train_bytes}


@pytest.mark.parametrize(("cluster", "least"), [("hw-dgx-h200", 5), ("hw-dgx-b200", 6)])
def test_nvls_from_how_many_gpus(cluster: str, least: int) -> None:
    """nccl#2140."""
    found = [gpus for gpus in range(2, 9) if choice(1 << 33, load_cluster(cluster).with_gpus(gpus)) == "nvls simple"]
    assert found == [*range(least, 9)]


def test_rows_that_name_the_algorithm_are_predicted() -> None:
    """stas-0051 to 0060: on a B200 node NCCL takes NVLS from six GPUs, with NVLS off never; "auto" and "off" take equal times below six."""
    rows = {m.id: m for m in read_measurements()}
    for number in range(51, 61):
        m = rows[f"stas-{number:04d}"]
        gpus = int(m.config["gpus"])
        node = load_cluster("hw-dgx-b200").with_gpus(gpus)
        nvls = "off" if m.config["nvls"] == "off" else "auto"
        expected = "ring simple" if nvls == "off" or gpus < 6 else "nvls simple"
        assert choice(8 << 30, node, nvls=nvls) == expected, m.id
        if gpus < 6 and nvls == "auto":
            assert m.value == pytest.approx(rows[f"stas-{number + 1:04d}"].value, rel=0.002)


def test_nvls_is_forced_on_and_off() -> None:
    for cluster in ("hw-dgx-h100", "hw-dgx-b200"):
        four, eight = (load_cluster(cluster).with_gpus(gpus) for gpus in (4, 8))
        assert choice(64 * MIB, four, nvls="on") == "nvls simple"
        assert choice(64 * MIB, four) == choice(64 * MIB, eight, nvls="off") == "ring simple"
        assert in_switch(four.own_gpu, [4, 8], None).tolist() == [False, True]


def test_over_nodes_small_all_reduces_take_trees() -> None:
    cluster = load_cluster("hw-dgx-h100-x4")
    assert choice(64 * KIB, cluster).startswith("tree")
    assert choice(1 << 30, cluster) == "ring simple"


@pytest.mark.parametrize(
    ("workload", "cluster", "where"),
    [("broadcast:1MiB", "hw-dgx-h100", "broadcast"), ("all-reduce:64MiB", "hw-dgx-h100-x2", "2 NVLink domains")],
)
def test_bulk_stores_are_refused_where_a_chunk_goes_on(workload: str, cluster: str, where: str) -> None:
    with pytest.raises(ConfigError, match=f"found 'bulk' with {where}, expected 'trains'"):
        dysharp.run("nccl-ring", workload=workload, cluster=cluster, options={"nccl-ring.ops": "bulk"})
