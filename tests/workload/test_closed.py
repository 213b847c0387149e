"""Closed forms of uniform routing against the table of the DySHARP study, and against counted routings."""

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import load_model
from dysharp.workload import distinct_gpus, make_routing, traffic, uniform_p, uniform_traffic

# name: p, R, K, one copy per GPU, per expert, multicast, cut %, useless %, ideal speed-up
TABLE = {
    "S-8": (0.2361, 7.32, 7.75, 29.28, 31, 16.64, 43.2, 324, 1.760),
    "S-16": (0.4405, 13.66, 15.5, 54.62, 62, 29.31, 46.3, 127, 1.864),
    "S-32": (0.7540, 23.37, 31, 93.49, 124, 48.75, 47.9, 33, 1.918),
    "M-8": (0.2300, 7.13, 7.75, 28.52, 31, 16.26, 43.0, 335, 1.754),
    "M-16": (0.4178, 12.95, 15.5, 51.81, 62, 27.90, 46.1, 139, 1.857),
    "M-32": (0.6886, 21.35, 31, 85.39, 124, 44.69, 47.7, 45, 1.911),
    "L-8": (0.2271, 7.04, 7.75, 28.16, 31, 16.08, 42.9, 340, 1.751),
    "L-16": (0.4077, 12.64, 15.5, 50.56, 62, 27.28, 46.0, 145, 1.853),
    "L-32": (0.6618, 20.52, 31, 82.07, 124, 43.03, 47.6, 51, 1.907),
}
EXPERTS = {"S": 64, "M": 128, "L": 256}


@pytest.mark.parametrize("name", TABLE)
def test_table_of_the_study(name: str) -> None:
    size, topk = name.split("-")
    got = uniform_traffic(EXPERTS[size], 32, int(topk))
    p, r, k, per_gpu, per_expert, multicast, cut, useless, ideal = TABLE[name]
    assert got.p == pytest.approx(p, abs=5e-5)
    assert got.remote_gpus == pytest.approx(r, abs=6e-3)
    assert got.remote_rows == k
    assert got.one_copy_per_gpu == pytest.approx(per_gpu, abs=6e-3)
    assert got.one_copy_per_expert == per_expert
    assert got.multicast == pytest.approx(multicast, abs=6e-3)
    assert got.allgather == 64
    assert 100 * got.redundant_share == pytest.approx(cut, abs=0.06)
    assert 100 * (1 - got.multicast / got.one_copy_per_gpu) == pytest.approx(cut, abs=0.06)
    assert 100 * got.useless_over_useful == pytest.approx(useless, abs=0.6)
    assert got.ideal_speedup == pytest.approx(ideal, abs=6e-4)


@pytest.mark.parametrize(("gpus", "remote"), [(4, 2.74), (8, 4.75), (16, 6.33), (32, 7.32), (64, 7.88)])
def test_small_model_on_other_scales(gpus: int, remote: float) -> None:
    assert uniform_traffic(64, gpus, 8).remote_gpus == pytest.approx(remote, abs=6e-3)


def test_sampled_large_model_meets_the_closed_form() -> None:
    routing = make_routing("uniform", load_model("L-8"), 32, 8192)
    distinct = distinct_gpus(routing)
    assert distinct.without_source == pytest.approx(7.04, abs=6e-3)
    assert distinct.with_source == pytest.approx(32 * uniform_p(256, 32, 8), abs=6e-3)

    moved = {name: traffic(routing, name, 1) for name in ("one_copy_per_gpu", "multicast", "allgather")}
    total = {
        name: sum(t[op][way] for op in ("dispatch", "combine") for way in ("up", "down"))
        for name, t in moved.items()
    }
    assert 1 - total["multicast"] / total["one_copy_per_gpu"] == pytest.approx(0.429, abs=1e-3)
    assert total["one_copy_per_gpu"] / total["multicast"] == pytest.approx(1.751, abs=2e-3)
    useful = moved["one_copy_per_gpu"]["dispatch"]["down"]
    assert moved["allgather"]["dispatch"]["down"] / useful - 1 == pytest.approx(3.40, abs=5e-3)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"found 256 experts, 72 GPUs, top-8; expected a multiple of the GPUs as experts"):
        uniform_p(256, 72, 8)
    with pytest.raises(ConfigError, match=r"found 1 GPUs, expected at least 2"):
        uniform_traffic(8, 1, 2)
