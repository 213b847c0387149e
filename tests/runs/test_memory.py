"""The memory estimate against measured runs, and the memory that a container may use."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError, OverShare
from dysharp.runs import memory
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.memory import check_memory, estimate_bytes, usable_bytes, within
from dysharp.runs.options import options_of
from dysharp.runs.request import Request, make_request
from dysharp.specs import load_model
from dysharp.systems import get_system

# Peak resident MB (1e6 bytes) of `dysharp run SYSTEM --model L-8 --routing uniform`, kernels in the cache (`peak_rss_mb` of --json).
MEASURED = [
    ("deepep", "hw-gb200-nvl72", 16, 512, 311),
    ("deepep", "paper-nvl72", 16, 1024, 240),
    ("dysharp", "paper-nvl72", 16, 1024, 214),
    ("hybrid-ep", "hw-gb200-nvl72", 16, 512, 275),
    ("deepep", "paper-nvl72", 64, 4096, 1514),
    ("deepep", "hw-gb200-nvl72", 64, 4096, 6002),
    ("hybrid-ep", "hw-gb200-nvl72", 64, 4096, 4295),
]


def request(cluster: str, gpus: int, tokens: int) -> Request:
    args: RequestArgs = {
        "model": "L-8", "cluster": cluster, "gpus": gpus, "tokens": tokens, "layer": None, "routing": "uniform", "placement": "auto",
        "direction": "fwd", "seed": 0, "fidelity": "burst", "window": None, "options": None, "progress": None, "start": None, "slow": None,
        "precision_of_time": None, "exact": False,
    }  # fmt: skip
    return make_request(args)


@pytest.mark.parametrize(("system", "cluster", "gpus", "tokens", "megabytes"), MEASURED)
def test_the_estimate_is_within_30_percent(system: str, cluster: str, gpus: int, tokens: int, megabytes: int) -> None:
    chosen = get_system(system)
    estimate = estimate_bytes(chosen, request(cluster, gpus, tokens), options_of(chosen, {})) / 1e6
    assert 0.7 * megabytes < estimate < 1.3 * megabytes


def test_a_run_is_refused_by_its_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    system, asked = get_system("deepep"), request("paper-nvl72", 16, 1024)
    options = options_of(system, {})
    monkeypatch.setattr(memory, "usable_bytes", lambda: 600_000_000)
    check_memory(system, asked, options)
    with within(1 / 2):
        check_memory(system, asked, options)
    with within(1 / 4), pytest.raises(ConfigError, match=r"needs about 0\.2 GiB .* 0\.1 GiB of it for this process; take fewer jobs \(-j\)"):
        check_memory(system, asked, options)


def test_the_part_that_a_large_point_asks_for_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quotient of two whole numbers, times one of them, may be rounded below the other."""
    monkeypatch.setattr(memory, "usable_bytes", lambda: 25276502016)
    monkeypatch.setattr(memory, "estimate_bytes", lambda *asked: 8502800661)
    monkeypatch.setattr(memory, "most_bytes", lambda asked: 1 << 60)
    system, asked = get_system("deepep"), request("paper-nvl72", 16, 1024)
    with within(0.2), pytest.raises(OverShare) as small:
        check_memory(system, asked, options_of(system, {}))
    with within(small.value.part):
        check_memory(system, asked, options_of(system, {}))


def group(root: Path, name: str, file: str, limit: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / file).write_text(limit + "\n")


def test_the_limit_of_a_container(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    machine = usable_bytes(root, own)
    assert machine > 1 << 28
    own.write_text("0::/a/b\n")
    group(root, "a/b", "memory.max", "max")
    assert usable_bytes(root, own) == machine
    group(root, "a", "memory.max", str(1 << 27))  # of a group around it
    assert usable_bytes(root, own) == 1 << 27
    own.write_text("0::/gone\n")  # in a container the host's path does not exist
    group(root, ".", "memory.max", str(1 << 26))
    assert usable_bytes(root, own) == 1 << 26


def test_the_limit_of_a_container_of_version_1(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("12:cpu,cpuacct:/c\n9:memory:/c\n")
    group(root, "memory/c", "memory.limit_in_bytes", "9223372036854771712")  # no limit
    machine = usable_bytes(root, own)
    group(root, "memory/c", "memory.limit_in_bytes", str(1 << 27))
    assert usable_bytes(root, own) == 1 << 27 < machine


def test_the_estimate_at_packet_level() -> None:
    chosen, asked = get_system("deepep"), request("paper-nvl72", 16, 256)
    asked = dataclasses.replace(asked, model=load_model("S-8"), fidelity="packet")
    assert 0.7 * 258 < estimate_bytes(chosen, asked, options_of(chosen, {})) / 1e6 < 1.3 * 258
