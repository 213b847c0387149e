"""Every system on S-8 packet by packet: bytes equal the burst level's, times agree or the cause is on record."""

from __future__ import annotations

import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import FabricConfig, fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.systems.registry import all_systems
from dysharp.workload import make_routing

FAR = {"dysharp": 0.25, "explicit": 0.25, "megatron-ag": 0.04}
"""Systems beyond 3 %: with a full dispatch window replicas crowd out the requests of Combine (engine/packet/README.md); an all-gather keeps all
links full all the time and packets take 3.1 % less than trains, for a reason not yet known."""


def difference(name: str, tokens: int) -> float:
    """Packet over burst level, minus one, on S-8; bytes on every link are equal."""
    model, cluster = load_model("S-8"), load_cluster("paper-gh200-nvl32")
    routing = make_routing(model.routing, model, 32, tokens, seed=0, layer=None, placement="auto")
    system = get_system(name)
    program = system.plan(model, cluster, routing, "fwd", system.options())
    burst, packet = run_burst(program)[0], run_packet(program, FabricConfig(n_planes=cluster.n_switches, speedup=cluster.internal_speedup)).trace
    assert packet.up_busy.tolist() == burst.up_busy.tolist()
    assert packet.down_busy.tolist() == burst.down_busy.tolist()
    return packet.time_ps / burst.time_ps - 1


@pytest.mark.parametrize("name", ["dysharp", "deepep", "comet", "fusion-only", "ideal"])
def test_short_layers_agree(name: str) -> None:
    found = difference(name, 32)
    print(name, f"{found:+.2%}")
    assert abs(found) < max(0.05, FAR.get(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(all_systems()))
def test_s8_agrees_within_three_percent(name: str) -> None:
    found = difference(name, 256)
    print(name, f"{found:+.2%}")
    assert abs(found) < FAR.get(name, 0.03)


def test_finite_tables_are_used_and_counted() -> None:
    model, cluster = load_model("S-8"), load_cluster("paper-gh200-nvl32")
    routing = make_routing(model.routing, model, 32, 16, seed=0, layer=None, placement="auto")
    system = get_system("dysharp")
    run = run_packet(system.plan(model, cluster, routing, "fwd", system.options()), fabric_of(cluster))
    table = run.statistics["al_tlb"]
    assert table["lookups"] == table["hits"] + table["misses"] + table["merged"]
    assert table["allocated"] == 32 * 16 * 8 - _local_rows(routing)
    assert run.statistics["reduction"]["sessions"] > 0


def _local_rows(routing: object) -> int:
    """Rows whose expert is on the token's own GPU: they never pass a hub's ingress."""
    from dysharp.workload import pairs

    p = pairs(routing)  # type: ignore[arg-type]
    counts = p.slot_ptr[1:] - p.slot_ptr[:-1]
    return int(counts[p.gpu == p.token // 16].sum())
