"""Every system on S-8 packet by packet: bytes equal the burst level's, times agree or the cause is on record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.engine.packet.fabric import fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.systems.registry import all_systems
from dysharp.testing.conformance.case import CheckedPass, SystemCase
from dysharp.testing.conformance.runs import _full_layer, _packet_differences, _packet_time_agrees, _packets_carry_the_same_bytes
from dysharp.workload import make_routing

FAR = {"comet-flux": 0.04, "megatron-ag": 0.05, "fusion-only": 0.04, "explicit": 0.04, "multicast-only": 0.04, "mh-dep": 0.05, "moe-hub": 0.05}
"""Systems beyond 3 % on S-8 with 256 tokens per GPU, in docs/deviations.md, Burst and packet level. `multicast-only` was listed when its +3.8 % had
been seen (+2.4 % where rows share links evenly)."""


def differences(name: str, tokens: int, model_name: str = "S-8", n_gpus: int = 32) -> tuple[float, float]:
    """Packet over burst level, minus one, and how far apart the mean use of the up links is; bytes on every link are equal."""
    case = CheckedPass(get_system(name), _full_layer(tokens, model_name, n_gpus), "fwd")
    assert list(_packets_carry_the_same_bytes(case)) == []
    return _packet_differences(case)


@pytest.mark.parametrize("name", ["dysharp", "deepep", *(pytest.param(n, marks=pytest.mark.slow) for n in ("comet", "fusion-only", "ideal"))])
def test_short_layers_agree(name: str) -> None:
    time, _ = differences(name, 32)
    print(name, f"{time:+.2%}")
    assert abs(time) < 0.05


@pytest.mark.parametrize("name", ["dysharp", "deepep", "comet"])
def test_recorded_routing_agrees(name: str) -> None:
    """DeepSeek-V2-Lite under its own routing, on eight GPUs: one GPU is far fuller than the others."""
    time, used = differences(name, 64, "deepseek-v2-lite", 8)
    print(name, f"{time:+.2%}")
    assert abs(time) < (0.045 if name == "dysharp" else 0.03)  # docs/deviations.md, Levels: dysharp -3.8 %
    assert used < 0.02


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ("dysharp", "deepep") else pytest.mark.long) for n in sorted(all_systems())]
)
def test_s8_agrees_within_three_percent(name: str) -> None:
    bars = (FAR[name], 0.05) if name in FAR else (0.03, 0.02)
    assert list(_packet_time_agrees(SystemCase(get_system(name)), *bars)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["comet-flux", "megatron-ag", "mh-dep", "moe-hub"])
def test_rows_that_share_links_evenly_agree(name: str) -> None:
    """The levels part by 4 % only because a row starts at a hashed link: the burst level's one server shares all links evenly."""
    case = CheckedPass(get_system(name), _full_layer(256), "fwd")
    even = run_packet(case.program, replace(fabric_of(case.layer.cluster), stripe="even"))
    assert abs(even.trace.time_ps / case.trace.time_ps - 1) < 0.015


def test_finite_tables_are_used_and_counted() -> None:
    model, cluster = load_model("S-8"), load_cluster("paper-gh200-nvl32")
    routing = make_routing(model.routing, model, 32, 16, seed=0, layer=None, placement="auto")
    system = get_system("dysharp")
    run = run_packet(system.plan(model, cluster, routing, "fwd", system.options()), fabric_of(cluster))
    table = run.statistics["al_tlb"]
    assert table["lookups"] == table["hits"] + table["misses"] + table["merged"]
    assert table["allocated"] == 32 * 16 * 8 - _local_rows(routing, 16)
    assert run.statistics["reduction"]["sessions"] > 0


def test_rows_that_only_pulls_look_up_stay_in_the_table() -> None:
    """hub-sharp's stores ask no AL Table. Its pulls read every row once where the TLB holds all rows under way, as at burst level."""
    model, cluster, system = load_model("S-8"), load_cluster("paper-gh200-nvl32"), get_system("hub-sharp")
    routing = make_routing("uniform", model, 4, 512, seed=0, layer=None, placement="auto")
    table = run_packet(system.plan(model, cluster, routing, "fwd", system.options()), fabric_of(cluster)).statistics["al_tlb"]
    assert table["misses"] == table["rows_read"] == 512 * 4 * 8 - _local_rows(routing, 512)
    assert table["hits"] > 0  # with 256 tokens all packets of a row come while its entry is read
    assert table["allocated"] == 0


def _local_rows(routing: object, tokens: int) -> int:
    """Rows whose expert is on the GPU of the token, one of `tokens` there: they never pass a hub's ingress."""
    from dysharp.workload import pairs

    p = pairs(routing)  # type: ignore[arg-type]
    counts = p.slot_ptr[1:] - p.slot_ptr[:-1]
    return int(counts[p.gpu == p.token // tokens].sum())
