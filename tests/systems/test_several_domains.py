"""Systems over several NVLink domains: counts, bytes by network, tensors, refusals, a slow NIC."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dysharp.analysis import attribute, program_bound, traffic_bytes, wire_table
from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.functional.emulation import Shape, run_emulation
from dysharp.functional.faults import machine_faults
from dysharp.functional.machine import Machine
from dysharp.oracle import run_oracle
from dysharp.planning.advice.candidates import candidates
from dysharp.program import Program
from dysharp.program.verify import verify
from dysharp.specs import Cluster, Model, load_cluster, load_model
from dysharp.specs.cluster import ScaleOut
from dysharp.systems import all_systems, get_system
from dysharp.workload import Routing, make_routing
from dysharp.workload.closed import expected_copies
from dysharp.workload.levels import LEVELS, two_hop
from tests.interpreters.mutants import difference
from tests.interpreters.plain import PlainEngine

SYSTEMS = sorted(name for name, system in all_systems().items() if system.reach.domains)
SPINE = ("deepep-ll",)
"""Systems whose rows pass the spine with default options."""
MODEL = replace(load_model("S-8"), name="small", n_experts=16, topk=4, hidden=256, expert_hidden=128)


def domains(n: int, gpus: int, base: str = "paper-dgx-h100", **scale_out: object) -> Cluster:
    """`n` domains of `gpus` GPUs."""
    net = ScaleOut(gpus, 47.0, 8.0, **scale_out)  # type: ignore[arg-type]
    return replace(load_cluster(base), n_gpus=n * gpus, max_gpus=n * gpus, scale_out=net)


def planned(name: str, cluster: Cluster, tokens: int = 8, direction: str = "fwd", model: Model = MODEL, **options: object) -> tuple[Program, Routing]:
    system = get_system(name)
    routing = make_routing("uniform", model, cluster.n_gpus, tokens)
    return system.plan(model, cluster, routing, direction, system.options(**options)), routing


@pytest.mark.parametrize(("n", "expected"), [(2, 1.993), (4, 3.614), (8, 5.295)])
def test_distinct_domains_of_a_token(n, expected):
    assert expected_copies(n, 256, 8) == pytest.approx(expected, abs=5e-4)
    routing = make_routing("uniform", load_model("deepseek-v3"), 8 * n, 64)
    remote = two_hop(routing, 8).far[0].sum() / routing.n_tokens
    assert remote == pytest.approx(expected * (n - 1) / n, rel=0.02)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bytes_of_every_network_equal_the_closed_form(name, direction):
    program, _ = planned(name, domains(4, 2), direction=direction)
    verify(program)  # declared traffic is the closed form of the routing
    trace = run_oracle(program)
    counted = traffic_bytes(program, trace)
    assert set(program.declared.traffic) == {"up", "down", "nic out", "nic in"}
    for side, by_operator in program.declared.traffic.items():
        assert {name: counted[side][name] for name in by_operator} == by_operator, side
    table = wire_table(program)
    np.testing.assert_array_equal(table.up.sum(axis=1), trace.up_busy)
    np.testing.assert_array_equal(table.down.sum(axis=1), trace.down_busy)
    assert program_bound(program).us <= trace.time_ps / 1e6
    assert sum(attribute(program, trace).values()) == trace.time_ps


def test_what_leaves_by_nic_arrives_by_nic():
    routing = make_routing("uniform", MODEL, 8, 16)
    for name, scheme in LEVELS.items():
        levels = scheme(routing, 2)
        assert levels.far[0].sum() == levels.far[1].sum() or name in ("dysharp", "allgather"), name
        one = scheme(routing, 8)  # one domain: nothing leaves
        assert one.far[0].sum() == 0 or name == "nic_only", name


@pytest.mark.parametrize("name", SYSTEMS)
def test_engine_equals_oracle(name):
    program, _ = planned(name, domains(2, 2), tokens=4)
    assert difference(PlainEngine(), program, run_oracle(program)) is None


@pytest.mark.parametrize("block", ["integer", "gated"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_tensors_over_domains(name, block):
    machine = Machine(system=name, gpus=8, cluster=domains(4, 2), path="row", order="random", seed=3)
    assert run_emulation(machine, block, Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds


def test_packets_between_domains_are_refused():
    machine = Machine(system="deepep", gpus=4, cluster=domains(2, 2), path="packet")
    with pytest.raises(ConfigError, match="path packet: found network 'nic' between NVLink domains, expected one domain"):
        run_emulation(machine, "integer", Shape(32, 32, 16, 4), tokens=2, dtype=None, backward=False, kinds=())
    machine = Machine(system="deepep", gpus=4, cluster=domains(2, 2), faults=machine_faults(("evict",)))
    with pytest.raises(ConfigError, match=r"injected faults of packets: found network 'nic' .* or nic-lose, nic-retry, nic-reorder"):
        run_emulation(machine, "integer", Shape(32, 32, 16, 4), tokens=2, dtype=None, backward=False, kinds=())


def test_other_systems_are_refused_by_name():
    with pytest.raises(ConfigError, match=r'comet in paper form on cluster "paper-dgx-h100": found 4 NVLink domains of 2 GPUs'):
        planned("comet", domains(4, 2))


@pytest.mark.parametrize("name", ["moe-hub", "mh-dep", "mh-pkt", "mh-base", "hub-sharp"])
def test_hubs_stay_inside_a_domain(name):
    reason = "hubs place rows that come by NVLink, and the paper has no NIC"
    with pytest.raises(ConfigError, match=rf"{name} in paper form .*: found 4 NVLink domains of 2 GPUs, expected one .*: {reason}$"):
        planned(name, domains(4, 2))


def test_a_barrier_has_whole_rounds():
    """NVSHMEM's dissemination barrier of radix 2: three nodes take as many rounds as four."""
    times = []
    for n in (2, 3, 4, 8):
        model = replace(MODEL, n_experts=2 * n)
        program, _ = planned("deepep", domains(n, 2, base="hw-dgx-h100"), model=model, form="real", n_sm=4)
        template = next(i for i, t in enumerate(program.templates) if t.name == "dispatch.notify")
        op = int(np.flatnonzero(program.ops.template == template)[0])
        times.append(int(program.durations[program.templates[template].duration, program.ops.rows[op]]))
    one, rest = times[2] - times[0], 2 * times[0] - times[2]
    assert times == [rest + one, rest + 2 * one, rest + 2 * one, rest + 3 * one]


def test_deepep_ends_at_twenty_domains():
    """Its real form is refused in one line, and `compare` and `advise` without names take the others."""
    for n, runs in ((20, True), (21, False)):
        cluster = domains(n, 2, base="hw-dgx-h100")
        assert get_system("deepep").reach.runs_on(cluster, "real") == runs
        assert get_system("deepep").reach.runs_on(cluster, "paper")
        request = SimpleNamespace(model=MODEL, cluster=cluster, direction="fwd")
        assert candidates(None, request, None)[1].get("deepep") == (None if runs else "serves at most 20 NVLink domains")
    with pytest.raises(ConfigError, match=r"deepep: found 21 domains, expected at most 20 \(the kernels' limit\)"):
        planned("deepep", domains(21, 2, base="hw-dgx-h100"), model=replace(MODEL, n_experts=42))


def test_layouts_that_do_not_divide():
    with pytest.raises(ConfigError, match="found 12, expected at most 8, or a multiple of it"):
        load_cluster("hw-dgx-h100-x4").with_gpus(12)
    with pytest.raises(ConfigError, match=r"found 16 GPUs, expected 1 to 8: this cluster is one NVLink domain; a cluster with a \[scale_out\] table"):
        load_cluster("hw-dgx-h100").with_gpus(16)
    with pytest.raises(ConfigError, match=r"slow_nics: found GPU 9, expected 0 to 7"):
        planned("deepep", domains(4, 2, slow_nics=((9, 0.5),)))
    assert load_cluster("hw-dgx-h100-x4").with_gpus(8).domains == 1


def test_one_domain_in_use_is_one_domain():
    near, _ = planned("deepep", load_cluster("paper-dgx-h100"))
    far, _ = planned("deepep", load_cluster("paper-dgx-h100-x4").with_gpus(8))
    assert not far.nets
    assert run_oracle(near).digest() == run_oracle(far).digest()


@pytest.mark.parametrize("base", ["paper-dgx-h100", "hw-dgx-h100"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_packet_level_agrees(name, base):
    """NVLink packet by packet, NICs message by message: equal bytes in every network, times within 3 %."""
    cluster = domains(2, 4, base=base)
    form = "real" if base.startswith("hw") and get_system(name).has_real_form else "paper"
    if not get_system(name).reach.runs_on(cluster, form):
        pytest.skip("no such form between domains")
    program, _ = planned(name, cluster, tokens=16, model=replace(MODEL, hidden=2048))
    burst, _ = run_burst(program)
    packet = run_packet(program, fabric_of(cluster)).trace
    np.testing.assert_array_equal(packet.up_busy, burst.up_busy)
    np.testing.assert_array_equal(packet.down_busy, burst.down_busy)
    assert packet.time_ps == pytest.approx(burst.time_ps, rel=0.03)
    assert (packet.done >= 0).all()


def test_packet_level_knows_slow_nics_and_the_spine():
    """A slow NIC and a slow spine cost as much as at burst level."""
    for scale_out in ({"slow_nics": ((3, 1 / 3),)}, {"oversubscription": 3.0}, {"message_us": 0.5}):
        program, _ = planned("deepep-ll", domains(4, 2, **scale_out), tokens=32)
        even, _ = planned("deepep-ll", domains(4, 2), tokens=32)
        burst, packet = run_burst(program)[0].time_ps, run_packet(program).trace.time_ps
        assert packet == pytest.approx(burst, rel=0.03)
        assert packet > 1.05 * run_packet(even).trace.time_ps


def test_slow_nic_slows_its_link_alone_in_the_paper_form():
    fast, _ = planned("deepep", domains(2, 2), tokens=64)
    slow, _ = planned("deepep", domains(2, 2, slow_nics=((3, 1 / 3),)), tokens=64)
    assert slow.nets[0].rates == (47_000, 47_000, 47_000, 15_667)
    more = program_bound(slow).us - program_bound(fast).us
    assert program_bound(slow).resource.startswith("gpu[3].nic")
    assert run_oracle(slow).time_ps - run_oracle(fast).time_ps == pytest.approx(1e6 * more, rel=0.1)


@pytest.mark.parametrize(
    ("n", "gpus", "nic", "nvlink"), [(2, 8, 1.0, 1.48), (4, 8, 1.46, 1.28), (8, 8, 1.64, 1.12), (2, 32, 1.0, 1.58), (4, 32, 1.46, 1.36)]
)
def test_ceilings_of_multicast_and_sums_between_domains(n, gpus, nic, nvlink):
    """Gains over unicast, Dispatch and Combine one after the other: bytes of the busier direction of each link."""
    routing = make_routing("uniform", load_model("deepseek-v3"), gpus * n, 256 // (gpus // 8))
    before, after = LEVELS["two_hop"](routing, gpus), LEVELS["dysharp"](routing, gpus)

    def both(rows: tuple[np.ndarray, np.ndarray]) -> int:
        return int(rows[0].sum() + rows[1].sum())  # Dispatch out, and Combine out, which mirrors Dispatch in

    assert both(before.far) / both(after.far) == pytest.approx(nic, abs=0 if n == 2 else 0.01)
    # A domain whose only GPU for a token is the one that forwards needs no NVLink, which the published form does not count.
    assert nvlink - 0.01 <= both(before.near) / both(after.near) <= 1.05 * nvlink


@pytest.mark.parametrize(("n", "expected"), [(4, 3.62), (8, 3.98)])
def test_groups_limit_the_domains_of_a_token(n, expected):
    model = replace(load_model("deepseek-v3"), n_group=n, topk_group=min(n, 4))
    routing = make_routing("uniform:group-limited", model, 8 * n, 256)
    remote = two_hop(routing, 8).far[0].sum() / routing.n_tokens
    assert remote * n / (n - 1) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", [n if n in (*SPINE, "deepep") else pytest.param(n, marks=pytest.mark.slow) for n in SYSTEMS])
def test_an_oversubscribed_spine_slows_what_leaves_its_rail(name):
    """Rails do not pass the spine: systems on rails take as long as before. Rows between rails have a third of the rate."""
    even, _ = planned(name, domains(4, 2), tokens=12)
    slow, _ = planned(name, domains(4, 2, oversubscription=3.0), tokens=12)
    verify(slow)
    before, after = run_oracle(even), run_oracle(slow)
    across = traffic_bytes(slow, after)["spine out"]
    declared = slow.declared.traffic["spine out"]
    assert {operator: across.get(operator, 0) for operator in declared} == declared
    if name in SPINE:
        assert program_bound(slow).resource.partition(".")[2].startswith("spine")
        assert program_bound(slow).terms["payload"] > 1.3 * program_bound(even).terms["payload"]
        assert after.time_ps > before.time_ps
        assert sum(attribute(slow, after).values()) == after.time_ps
        assert difference(PlainEngine(), slow, after) is None
    else:
        assert not any(across.values())
        assert after.time_ps == before.time_ps


def test_nothing_is_lost_on_the_spine():
    """Rows between rails and inside rails are the rows of NICs of an even network."""
    even, _ = planned("deepep-ll", domains(4, 2), tokens=8)
    slow, _ = planned("deepep-ll", domains(4, 2, oversubscription=2.0), tokens=8)
    for way in ("out", "in"):
        for operator in ("dispatch", "combine"):
            parts = (slow.declared.traffic[f"{net} {way}"][operator] for net in ("nic", "spine"))
            assert sum(parts) == even.declared.traffic[f"nic {way}"][operator]


def test_tensors_through_the_spine():
    machine = Machine(system="deepep-ll", gpus=8, cluster=domains(4, 2, oversubscription=2.0), path="row", order="random", seed=3)
    assert run_emulation(machine, "integer", Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds


def test_a_lost_nic():
    net = ScaleOut(2, 47.0, 8.0, nics_per_gpu=2, lost_nics=(3,))
    assert net.rates(4) == (94_000, 94_000, 94_000, 47_000)
    for key, found in (("lost_nics", (3,)), ("lost_nics", (9,))):
        with pytest.raises(ConfigError, match=r"found GPU [39]( without a NIC, expected nics_per_gpu above 1|, expected 0 to 7)"):
            planned("deepep", domains(4, 2, **{key: found}))


def test_keys_of_the_network_in_a_text():
    slow = load_cluster("hw-dgx-h100-x4,scale_out.oversubscription=2.0").scale_out
    assert slow is not None
    assert (slow.oversubscription, slow.domain_gpus, slow.nic_GBps) == (2.0, 8, 47.0)
    with pytest.raises(ConfigError, match="scale_out"):
        load_cluster("hw-dgx-h100,scale_out.oversubscription=2.0")


def test_real_form_of_hybrid_ep_between_domains():
    """Rows as in two hops; the engine equals the oracle; tensors are exact; twice the SMs are faster."""
    cluster = domains(2, 2, base="hw-dgx-h100")
    program, _ = planned("hybrid-ep", cluster, n_sm=2, chunk=4, form="real", compute=False)
    verify(program)
    trace = run_oracle(program)
    assert difference(PlainEngine(), program, trace) is None
    assert sum(attribute(program, trace).values()) == trace.time_ps
    counted = traffic_bytes(program, trace)
    for side, by_operator in program.declared.traffic.items():
        assert {name: counted[side][name] for name in by_operator} == by_operator, side
    few, many = (run_oracle(planned("hybrid-ep", cluster, tokens=64, n_sm=n, chunk=4, form="real", compute=False)[0]).time_ps for n in (2, 8))
    assert many < few
    machine = Machine(system="hybrid-ep", gpus=8, cluster=domains(4, 2, base="hw-dgx-h100"), path="row", order="random", seed=3)
    assert run_emulation(machine, "integer", Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds
