"""A switch that copies to few ports, from a file outside the tree: its ends are one copy per GPU and a whole multicast."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import dysharp as ds
from dysharp.systems.registry import _REGISTRY

FILE = Path(__file__).parents[2] / "examples" / "switch_fan_out.py"
LAYER = {"model": "S-8", "gpus": 8, "tokens": 64, "routing": "uniform"}


@pytest.fixture(autouse=True)
def few_ports() -> Iterator[None]:
    runpy.run_path(str(FILE), run_name="switch_fan_out")
    yield
    del _REGISTRY["few-ports"]


def run(fan_out: int) -> ds.Row:
    return ds.run("few-ports", options={"fan_out": fan_out}, **LAYER)


def test_the_ends_are_a_copy_per_gpu_and_a_whole_multicast() -> None:
    whole, single = ds.run("dysharp", **LAYER), ds.run("deepep", **LAYER)
    rows = [run(n) for n in (1, 2, 4, 8)]
    sent = [row.traffic_bytes["up"]["dispatch"] for row in rows]
    assert sent[0] == single.traffic_bytes["up"]["dispatch"]
    assert sent == sorted(sent, reverse=True)
    assert sent[-1] == whole.traffic_bytes["up"]["dispatch"]
    assert rows[-1].time_us == whole.time_us
    assert rows[0].time_us > rows[1].time_us > rows[-1].time_us
    assert len({row.traffic_bytes["down"]["dispatch"] for row in rows}) == 1
