"""Metrics of sub-layers on Rows made by hand; area of CAIS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.figures.metric import Seen, all_metrics
from dysharp.figures.metrics import sub_layers as m
from dysharp.runs.point import Point
from dysharp.silicon.cluster_area import cais_area
from dysharp.specs import load_cluster
from dysharp.workload.sublayer import parse_sub_layer


def seen(point: Point, **rows: dict) -> Seen:
    return Seen(point, {replace(point, **({"model": name} if ":" in name else {"system": name})): row for name, row in rows.items()})


def test_communication_over_computation_adds_both_sub_layers() -> None:
    point = Point("fuselib", "sub-layer:llama-7b:L1", "paper-cais-h100", "", gpus=8)
    rows = {f"sub-layer:llama-7b:{one}": {"time_us": 100.0, "utilization": {"up": up, "down": 0.9}} for one, up in (("L1", 0.5), ("L2", 0.25))}
    here = seen(point, **rows)
    flops = sum(sum(parse_sub_layer(f"sub-layer:llama-7b:{one}", 8).flops) for one in ("L1", "L2"))
    assert m._comm_over_comp(here) == pytest.approx(75.0 / (flops / (494.75e6 * 0.7)))
    assert m._comm_over_comp(here.at(replace(point, model="sub-layer:llama-7b:L2"))) is None


def test_steady_use_is_that_of_the_middle_half() -> None:
    point = Point("cais", "sub-layer:llama-7b:L2", "paper-cais-h100", "")
    use = {"cais": [0.0, 0.8, 0.6, 0.0], "cais-base": [1.0, 0.3, 0.4, 1.0]}
    here = seen(point, **{name: {"blocks": {"links": {"up_use": one}}} for name, one in use.items()})
    base = here.at(replace(point, system="cais-base"))
    assert base is not None
    assert all_metrics()["steady_ratio"].measure(base, here) == pytest.approx(0.5)
    assert [m._steady(one) for one in (here, base)] == [[0.8, 0.6], [0.3, 0.4]]


def test_the_error_against_nccl_is_that_of_its_rows() -> None:
    """azure-0036: 466.35 GB/s of bus bandwidth at 1 GiB; stas-0037: 734.97 at 2 GiB."""
    times = {("hw-dgx-h100", 1): 466.35, ("hw-dgx-b200", 2): 734.97}
    for (cluster, size), busbw in times.items():
        point = Point("nccl-nvls", f"all-reduce:{size}GiB", cluster, "", gpus=8)
        here = seen(point, **{point.model: {"time_us": 1.1 * size * 2**30 * 1.75 / (busbw * 1e3)}})
        assert m._measured_us(here) == pytest.approx(here.time_us / 1.1)
        assert m._nccl_mean_error(here) == pytest.approx(0.1)


def test_the_area_is_bits_and_gates_over_densities() -> None:
    """Eight ports of 40 KiB at 5 Mbit/mm2 are 0.524 mm2; logic, CAM and lists come on top."""
    one, full = (cais_area(load_cluster(name)) for name in ("paper-cais-h100", "paper-cais-h100-full"))
    assert 8 * 40 * 8192 / 5e6 < one["switch"].middle < 0.7
    assert one["switch"] == full["switch"]
    assert 1.9 < full["gpu"].middle / one["gpu"].middle < 2.2
    assert all(full[side].low < published < full[side].high for side, published in (("switch", 0.5), ("gpu", 0.019)))
