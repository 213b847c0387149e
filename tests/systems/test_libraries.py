"""DeepEP V2, NCCL EP, UCCL-EP and FlashInfer: what the real forms take from the libraries' sources."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from layers import TINY

from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.specs import Model, load_cluster, load_model
from dysharp.systems import get_system
from dysharp.systems.deepep_v2 import CHUNK, _channels_of_sm, _Hybrid, _own_sms
from dysharp.workload import make_routing, routing_from

V4 = Model("v4", 7168, 128, 384, 6, 256, 2, 2, "bf16")


def _plan(name: str, cluster: str = "hw-dgx-b200", gpus: int = 4, **options: Any) -> Program:
    system, machine = get_system(name), load_cluster(cluster).with_gpus(gpus)
    return system.plan(TINY, machine, make_routing("uniform", TINY, gpus, 16), "fwd", system.options(form="real", compute=False, **options))


@pytest.mark.parametrize(
    ("cluster", "gpus", "sms"),
    [("hw-dgx-h100", 8, 14), ("hw-dgx-b200", 8, 26), ("hw-gb200-nvl72", 16, 24), ("hw-dgx-h100-x2", 16, 10), ("hw-dgx-h100", 1, 132)],
)
def test_the_library_chooses_its_sms(cluster: str, gpus: int, sms: int) -> None:
    """By hand for 8 H100: 450 GB/s over 7/8 of the rows that leave, 50 GB/s an SM: 10.3; times 1.25: 13, even: 14."""
    assert _own_sms(V4, load_cluster(cluster).with_gpus(gpus)) == sms


def test_more_sms_copy_faster_and_wrong_numbers_are_refused() -> None:
    few, many = (run_burst(_plan("deepep-v2", n_sm=n))[0].time_ps for n in (1, 32))
    assert few > many
    with pytest.raises(ConfigError, match=r"deepep-v2.n_sm: found 999, expected 0 \(the library's own number\) to 148 SMs"):
        _plan("deepep-v2", n_sm=999)


def _ends(gpus: int, experts: list[int] | None = None) -> dict[str, int]:
    """ps at which the last op of each template of `deepep-v2` ends; every GPU has one token with these experts."""
    model = replace(TINY, hidden=2048, n_experts=8, topk=len(experts or [0]), tokens_per_gpu=1)
    machine, one = load_cluster("hw-dgx-h200").with_gpus(gpus), get_system("deepep-v2")
    routing = routing_from(np.tile(experts or [0], (gpus, 1)), n_experts=8, n_gpus=gpus)
    program = one.plan(model, machine, routing, "fwd", one.options(compute=False))
    done = run_burst(program)[0].done
    return {t.name: int(done[program.ops.template == i].max(initial=0)) for i, t in enumerate(program.templates)}


def test_a_barrier_takes_the_same_time_on_two_and_on_eight_gpus() -> None:
    two, eight = (_ends(gpus) for gpus in (2, 8))
    for ends in (two, eight):  # flags take their turn on the wire
        assert ends["dispatch.begun"] - ends["dispatch.launch"] == pytest.approx(4.379e6, rel=1e-3)


def test_the_last_barrier_of_dispatch_waits_for_the_counts() -> None:
    ends = _ends(8)
    assert ends["dispatch.counted"] - ends["dispatch.begun"] == pytest.approx(4.379e6, rel=1e-3)
    assert ends["dispatch.put"] < ends["dispatch.counted"] == ends["dispatch.sent"]


def test_a_warp_adds_two_copies_at_once_and_more_in_turn() -> None:
    """Rows of 4,096 B are two loads of 2 KB, 281 clocks each; one token a GPU moves next to nothing."""
    one, two, four = (_ends(8, experts) for experts in ([1], [1, 2], [1, 2, 3, 4]))
    took = [ends["combined"] - ends["combine.ended"] for ends in (one, two, four)]
    load = round(281e6 / load_cluster("hw-dgx-h200").own_gpu.boost_MHz)
    assert took[2] - took[1] == 2 * (4 - 1) * load
    assert took[0] == took[1]


def test_empty_rows_of_a_buffer_cost_time() -> None:
    """NCCL EP's buffers: Dispatch walks every row of every GPU, Combine pays per token of the capacity."""
    machine = load_cluster("hw-dgx-b200").with_gpus(4)
    small, large = (run_burst(_plan("nccl-ep", buffer_tokens=n))[0].time_ps / 1e6 for n in (16, 4096))
    walked = 4 * (4096 - 16) * machine.fitted["lib.slot_bytes"] / (machine.own_gpu.hbm_GBps * 1e3 * machine.fitted["hbm.fraction"])
    assert large - small == pytest.approx(walked + (4096 - 16) * machine.fitted["internode.hybrid_row_us"] / 16, rel=0.01)
    with pytest.raises(ConfigError, match=r"nccl-ep.buffer_tokens: found 8, expected 0 or at least the layer's 16"):
        _plan("nccl-ep", buffer_tokens=8)


@pytest.mark.parametrize(("name", "other", "options"), [("flashinfer", "trtllm-a2a", {}), ("uccl-ep", "deepep", {"n_sm": 24})])
def test_equal_kernels_take_equal_times(name: str, other: str, options: dict[str, Any]) -> None:
    assert run_burst(_plan(name, **options))[0].digest() == run_burst(_plan(other, **options))[0].digest()


@pytest.mark.parametrize("name", ["deepep-v2", "nccl-ep", "uccl-ep"])
def test_rows_cross_once_per_domain(name: str) -> None:
    program = _plan(name, "hw-dgx-h100-x2", 16)
    assert any(template.net for template in program.templates)
    assert run_burst(program)[0].time_ps > 0


def test_channels_of_an_sm_fit_its_shared_memory() -> None:
    """By hand: 232448 B hold 16 rows of 14336 B and 128 more, 15 beside 400 counts; two warps a channel. FP8 rows are shorter than Combine's."""
    assert _channels_of_sm(V4, 16, 14336) == 7
    assert _channels_of_sm(V4, 16, 7392) == 8
    assert _channels_of_sm(replace(V4, hidden=1 << 17), 16, 1 << 18) == 1


def test_chunks_are_six_rows_of_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 tokens a GPU on the 8 channels of one SM: up to six rows of one source, domain and channel, in token order; chunks take time."""
    machine, model = load_cluster("hw-dgx-h100-x2").with_gpus(16), replace(TINY, n_experts=16)
    routing = make_routing("uniform", model, 16, 40)
    kernels = _Hybrid(model, machine, routing, "fwd", compute=False)
    kernels.options = get_system("deepep-v2").options(n_sm=1)
    kernels.prepare()
    hop, far = kernels.hop, np.flatnonzero(kernels.hop.far)
    chunk, last = kernels.chunks(far)
    assert set(chunk.tolist()) == set(range(len(last)))
    for i, end in enumerate(last.tolist()):
        units = far[chunk == i]
        assert 0 < len(units) <= CHUNK
        assert hop.token[units].max() == hop.token[end]
        assert len({(hop.source[u], hop.domain[u], hop.token[u] % 40 % 8) for u in units.tolist()}) == 1
    short = [i for i in range(len(last)) if (chunk == i).sum() < CHUNK]
    assert len(short) <= 16 * 8  # the last chunk of a channel alone
    system = get_system("deepep-v2")
    plan = partial(system.plan, model, machine, routing, "fwd", system.options(form="real", compute=False, n_sm=1))
    times = [run_burst(plan())[0].time_ps]
    monkeypatch.setattr("dysharp.systems.deepep_v2.CHUNK", 1)
    times.append(run_burst(plan())[0].time_ps)
    assert times[0] > times[1]


def test_kernels_keep_the_librarys_own_number_of_sms() -> None:
    system, model, cluster = get_system("deepep-v2"), load_model("deepseek-v3"), load_cluster("hw-dgx-h100")
    assert system.kernel_sms(model, cluster, system.options()) == _own_sms(model, cluster) > 0
    assert system.kernel_sms(model, cluster, system.options(n_sm=12)) == 12
    assert get_system("megatron-a2a").kernel_sms(model, cluster, get_system("megatron-a2a").options()) == 0
