"""DeepEP's real form: what its channels do to time, and that its knobs are checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY

from dysharp.base.errors import ConfigError
from dysharp.costs.collectives import sync_us
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.specs import Cluster, load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from dysharp.systems import get_system
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.workload import make_routing, routing_from

CLUSTER = load_cluster("hw-dgx-h100").with_gpus(4)


def plan(tokens: int = 96, cluster: Cluster = CLUSTER, **options: object) -> Program:
    deepep = get_system("deepep")
    routing = make_routing("uniform", TINY, 4, tokens)
    return deepep.plan(TINY, cluster, routing, "fwd", deepep.options(compute=False, **options))


def time_us(program: Program) -> float:
    return run_burst(program)[0].time_ps / 1e6


def test_real_form_is_the_default_on_real_machines_only() -> None:
    assert run_burst(plan())[0].digest() == run_burst(plan(form="real"))[0].digest()
    assert time_us(plan(form="paper")) < time_us(plan())


def test_an_idle_layer_costs_its_calls() -> None:
    """With the least work per token the time is that of two calls, the rows' flight and nothing else worth naming."""
    least = {"deepep.token_us": 0.01, "deepep.copy_us": 0.01, "deepep.reduce_token_us": 0.05, "sm.copy_GBps": 300.0}
    idle = replace(CLUSTER, constants=tuple(sorted(least.items())))
    time = time_us(plan(tokens=4, cluster=idle))
    call = idle.fitted["deepep.call_us"] + 2 * float(sync_us(load_gpu("h100-sxm"), idle.fitted, 4))
    assert 2 * call < time < 2 * call + 10


def test_time_follows_the_share_of_a_channel() -> None:
    """SMs, not links, limit a small call: a quarter of the channels takes about four times the work's time."""
    calls = 2 * (fitted_values()["deepep.call_us"] + 2 * fitted_values()["hopper.sync_us"])
    wide, narrow = (time_us(plan(tokens=960, n_sm=n)) - calls for n in (16, 4))
    assert 3.0 < narrow / wide < 4.2


def test_fp8_rows_are_smaller_on_the_way_out_only() -> None:
    rows, fp8 = plan(), plan(dispatch="fp8")
    assert fp8.declared.traffic["up"]["combine"] == rows.declared.traffic["up"]["combine"]
    assert fp8.declared.traffic["up"]["dispatch"] * TINY.row_bytes == rows.declared.traffic["up"]["dispatch"] * ROW_BYTES["fp8"](TINY)


def test_a_ring_never_holds_more_than_its_slots() -> None:
    program = plan(tokens=2048, n_sm=2)
    trace, _ = run_burst(program)
    holds = program.holds
    ring = holds.sem == np.bincount(holds.sem).argmax()
    taken, given = trace.issue[holds.acquire[ring]], trace.done[holds.release[ring]]
    events = sorted([(t, 1) for t in taken] + [(t, -1) for t in given])
    held = np.cumsum([step for _, step in events])
    assert ring.sum() > 256
    assert 1 <= held.max() <= 256


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_sm": 3}, "deepep.n_sm: found 3, expected an even number of SMs from 2 to 132"),
        ({"n_sm": 0}, "deepep.n_sm: found 0"),
        ({"n_sm": 134}, "deepep.n_sm: found 134"),
        ({"form": "unreal"}, "form: found 'unreal', expected one of auto, paper, real"),
        ({"dispatch": "fp4"}, "deepep.dispatch: found 'fp4', expected rows or fp8"),
    ],
)
def test_wrong_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan(**options)


def test_destinations_have_warps_of_their_own() -> None:
    """A copy is paid by the warps of its destination: as many copies to one GPU take longer than to four in turn."""
    deepep = get_system("deepep")
    slow = replace(CLUSTER, constants=(("deepep.copy_us", 2.0),))
    token = np.arange(4 * 64, dtype=np.int32)
    experts = {"one": np.zeros_like(token), "four": token % 4 * (TINY.n_experts // 4)}
    times = {}
    for name, expert in experts.items():
        routing = routing_from(expert[:, None], TINY.n_experts, 4)
        program = deepep.plan(TINY, slow, routing, "fwd", deepep.options(compute=False, n_sm=2))
        times[name] = time_us(program)
    spread = 2 * 64 / 4 * 2.0  # both ways, a fourth of the tokens per group
    assert times["four"] > spread
    assert times["one"] > times["four"] + 64 * 2.0 * 0.7


def test_a_group_walks_past_the_tokens_of_others() -> None:
    """Half of the tokens go nowhere near a group: it still looks at them."""
    deepep = get_system("deepep")
    token = np.arange(4 * 256, dtype=np.int32)
    far = routing_from((token % 2 * (TINY.n_experts // 2))[:, None].astype(np.int32), TINY.n_experts, 4)
    times = []
    for look in (0.01, 1.0):
        cluster = replace(CLUSTER, constants=(("deepep.copy_us", 0.01), ("deepep.token_us", look)))
        times.append(time_us(deepep.plan(TINY, cluster, far, "fwd", deepep.options(compute=False, n_sm=2))))
    assert times[1] - times[0] == pytest.approx(256 * 0.99, rel=0.1)
