"""Rules of engines, uneven experts, what another machine brings, drafts: each moves the right way, and bounds bound."""

import re
from dataclasses import replace
from typing import Any

import pytest

from dysharp import serve
from dysharp.api.serving_answer import _balanced
from dysharp.api.serving_systems import ep_systems, merged_layers
from dysharp.base.errors import ConfigError
from dysharp.costs.exchange import Peers
from dysharp.costs.machine import Reducers, machine_of
from dysharp.model.batch import StepBatch
from dysharp.model.formats import formats_of
from dysharp.serving.answers import break_even, overlap_of, slots_of
from dysharp.serving.balance import hottest, loads_of, rearranging, stalled
from dysharp.serving.disaggregated import WorkerPool, _steady_pools, best_disaggregated, transfer_us
from dysharp.serving.engine import engine_of
from dysharp.serving.exchange import FREE, HUB, IN_SWITCH, beside_caches_us, exchange, row_bytes
from dysharp.serving.launch import start_of
from dysharp.serving.layer import _expert_op
from dysharp.serving.layout import ServeLayout, serve_layout_of
from dysharp.serving.replay.prices import StepPrices
from dysharp.serving.search import ServePoint
from dysharp.serving.step import StepTable, decode_batch, step_time
from dysharp.serving.whatif import Asked, _dead_gpu, what_ifs
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_whole

SECOND = 1e6


def replica(cluster: str = "hw-dgx-h200", layout: str = "tp=8", model: str = "deepseek-v3", precision: str = "fp8") -> Replica:
    return Replica(load_whole(model), formats_of(precision), serve_layout_of(layout), machine_of(load_cluster(cluster), "serving"))


def asked(cluster: str, gpus: int, *, tpot_ms: float = 50.0, layouts: str = "tp=8,ep=8;dp=8,ep=8;tp=4,dp=2,ep=8") -> Asked:
    named = tuple(serve_layout_of(one) for one in layouts.split(";"))
    return Asked(replica(cluster, "tp=1"), engine_of("sglang"), Scenario(1.0, 2000.0, 500.0), gpus, named, 3 * SECOND, tpot_ms * 1e3, 0.8)


def point(layouts: str, tpot_ms: float = 200.0) -> ServePoint:
    best = asked("hw-dgx-h200", 8, tpot_ms=tpot_ms, layouts=layouts).best()
    assert best is not None
    return best


def test_each_engine_sums_by_its_own_kernels() -> None:
    """Small sums take an own kernel, large ones NCCL: SGLang a ring (NCCL on eight H200, 106 MB: 0.46 ms), vLLM's multimem ends at 64 MiB."""
    rates = machine_of(load_cluster("hw-dgx-h200"), "serving")
    vllm, sglang, trtllm = (engine_of(name).reducers for name in ("vllm", "sglang", "trtllm"))
    assert rates.all_reduce(8, 106e6, sglang) == pytest.approx(460, rel=0.25)
    assert rates.all_reduce(8, 106e6, vllm) < rates.all_reduce(8, 106e6, sglang)
    assert rates.all_reduce(8, 30e6, vllm) < rates.all_reduce(8, 30e6, replace_switch(vllm))
    assert rates.all_reduce(8, 16e3, trtllm) < rates.all_reduce(8, 16e3, Reducers(kernels=()))
    assert rates.all_reduce(1, 1e9, sglang) == 0


def replace_switch(reducers: Reducers) -> Reducers:
    return reducers._replace(in_switch="", most_in_switch=0.0, nvls=False)


@pytest.mark.parametrize(("engine", "kernel"), [("sglang", 40.09), ("vllm", 5.0), ("trtllm", 5.0)])
def test_what_a_host_does_takes_as_long_as_its_cluster_says(engine: str, kernel: float) -> None:
    """Launches of a step with prompts, requests that the GPU does not hide, the end of a step. A kernel from Python takes 58 us on Blackwell."""
    one, two = (replica(f"hw-dgx-h200{factor}") for factor in ("", ",host_factor=2"))
    rules = engine_of(engine)
    assert rules.step_us(two, 1e4, 1.0) - rules.step_us(one, 1e4, 1.0) == pytest.approx(650)
    for requests, launches in ((1000.0, 0), (0.0, 3000)):
        took = rules.step_us(one, 10.0, requests, launches, 4096.0)
        assert took == pytest.approx(650 + 55 * requests + kernel * launches)
        assert rules.step_us(two, 10.0, requests, launches, 4096.0) == pytest.approx(2 * took)
    grace, scale = replica("hw-gb200-nvl72"), 1.0 if engine == "sglang" else 1.45
    assert rules.step_us(grace, 10.0, 0.0, 1000, 4096.0) == pytest.approx({"sglang": 58.25}.get(engine, kernel) * scale * 1000 + 1.45 * 650)


@pytest.mark.parametrize(
    ("model", "cluster", "layout", "tokens", "graphs"),
    [
        ("qwen3-30b", "hw-dgx-b200", "tp=8", 2048.0, True), ("llama3-70b", "hw-dgx-a100", "tp=8", 16384.0, True),
        ("qwen3-30b", "hw-mi300x", "tp=8", 2048.0, False), ("qwen3-30b", "hw-dgx-b200", "dp=8,ep=8", 2048.0, False),
        ("qwen3-30b", "hw-dgx-b200", "tp=4,pp=2", 2048.0, False),
        ("deepseek-v3", "hw-dgx-b200", "tp=8", 2048.0, True), ("deepseek-v3", "hw-dgx-b200", "tp=8", 2049.0, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mtp", [False, True])
def test_sglang_replays_pieces_of_prompts(model: str, cluster: str, layout: str, tokens: float, graphs: bool, mtp: bool) -> None:
    """docs/advanced_features/piecewise_cuda_graph.md: on by default but for those, drafts or not (PR #22128; MLA: server_args.py); runs up to 0.5.9,
    and prefill servers, have none."""
    served = Replica(load_whole(model), formats_of("bf16"), serve_layout_of(layout), machine_of(load_cluster(cluster), "serving"), mtp=mtp)
    rules = engine_of("sglang")
    eager, now = (one.step_us(served, 10.0, 0.0, 1000, tokens) for one in (replace(rules, piecewise=False), rules))
    assert (now == pytest.approx(engine_of("vllm").step_us(served, 10.0, 0.0, 1000)), now == eager) == (graphs, not graphs)


def test_graphs_of_latent_prompts_end_at_2048_tokens() -> None:
    """... in both clocks of a run."""
    one, rules = replica("hw-dgx-b200"), engine_of("sglang")
    for tokens, faster in ((2048.0, True), (2049.0, False)):
        both = [(StepTable(one, e, Scenario(1.0, tokens, 8.0)).prompts_us(tokens, tokens), StepPrices(one, e).us(0.0, 1.0, tokens, tokens))
                for e in (rules, replace(rules, piecewise=False))]  # fmt: skip
        assert [now < eager for now, eager in zip(*both, strict=True)] == [faster] * 2


def test_sglang_divides_a_step_by_its_groups() -> None:
    assert engine_of("sglang").beside(8).step_tokens == engine_of("sglang").step_tokens // 8
    assert engine_of("vllm").beside(8) == engine_of("vllm")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_commands(engine: str) -> None:
    rules, scenario = engine_of(engine), Scenario(100.0, 1000.0, 500.0, 1.8, 1)
    own = replace(replica(layout="dp=8,ep=8"), formats=formats_of("fp8", "fp8"))
    command = start_of(rules, own, scenario).command
    assert "deepseek-ai/DeepSeek-V3" in command
    assert not re.search(r"\{\w+\}", command)
    assert ("13" in command) == (engine != "sglang")  # requests of a group; SGLang counts those of all groups
    plain = start_of(rules, replica(layout="tp=8"), Scenario(4.0, 1.0, 2.0)).command
    for word in ("attention", "expert", "spec", "fp8"):
        assert word not in plain


def test_the_busiest_group_is_waited_for() -> None:
    scenario = Scenario(64.0, 1000.0, 1000.0)
    assert decode_batch(scenario, 64, 1).context == 1500
    assert 1500 < decode_batch(scenario, 64, 8).context < decode_batch(scenario, 64, 72).context < 1700
    assert decode_batch(scenario, 4, 8).context > decode_batch(scenario, 64, 8).context


def test_uneven_experts() -> None:
    """Even loads are even; a power law is not, EPLB evens it, and copies cost memory: 58 x 44 MB for one slot of a GPU."""
    even, r = tuple([1 / 256] * 256), replica(layout="dp=8,ep=8")
    assert hottest(even, 8, 0) == pytest.approx(1)
    loads = loads_of(r.model, "powerlaw:1")
    assert sum(loads) == pytest.approx(1)
    before, after = hottest(loads, 8, 0), hottest(loads, 8, 32)
    assert before > 1.5 > after >= 1
    times = [step_time(replace(r, loads=one), StepBatch(decodes=256, context=1000)).parts["experts"] for one in (even, loads)]
    assert times[0] < times[1]
    moved = rearranging(replace(r, loads=loads), 1)
    assert moved.held == pytest.approx(2.55e9, rel=0.01)
    assert moved.seconds > 0.1
    assert loads_of(load_whole("llama3-70b"), "uniform") == ()
    with pytest.raises(ConfigError):
        loads_of(r.model, "nothing:1")


def test_stalls_of_eplb() -> None:
    """0.91 s in 1,000 steps: half of the time of steps of 0.91 ms."""
    assert stalled(910) == 0.5
    assert stalled(30e3) == pytest.approx(0.91 / 30.91)


def test_eplb_at_a_point() -> None:
    best = point("dp=8,ep=8")
    uneven = replace(best, replica=replace(best.replica, loads=loads_of(best.replica.model, "powerlaw:0.8")))
    slots = slots_of(uneven)
    assert [one.eplb.slots for one in slots][:2] == [0, 1]
    assert slots[0].eplb.busiest > slots[1].eplb.busiest
    gain = slots[1].tokens_per_gpu / slots[0].tokens_per_gpu
    assert 0.98 < gain < 1 + (slots[0].eplb.busiest - 1) / 2  # few rows of an expert: weights are read, however even, and copies take cache
    loads, bare = uneven.replica.loads, replica(layout="dp=8,ep=8")
    late, even = (_expert_op(replace(bare, loads=loads, layout=replace(bare.layout, slots=n)), 65536).us for n in (0, 8))
    assert late > 1.2 * even
    assert slots_of(best) == []


def test_bounds_of_hardware() -> None:
    """Free communication is fastest, then DySHARP, then a hub, then what engines have; in decode DySHARP gains at most 1.5 times."""
    base = replica("hw-gb200-nvl72", "dp=32,ep=32", precision="fp4")
    batch = StepBatch(decodes=128, context=2000)
    times = [step_time(replace(base, ep_system=name), batch).device for name in (FREE, IN_SWITCH, HUB, "")]
    assert times == sorted(times)
    assert times[3] / times[1] < 1.5
    apart = replica("hw-dgx-h100-x8", "dp=64,ep=64")  # over domains NICs carry a row per domain, beside the links and the experts
    real, hub, switch, free = (step_time(replace(apart, ep_system=name), batch).device for name in ("", HUB, IN_SWITCH, FREE))
    assert real > 1.1 * hub
    assert hub >= switch > free


@pytest.mark.slow
def test_what_ifs_of_two_nodes() -> None:
    ask = asked("hw-dgx-h200-x2", 16)
    best = ask.best()
    assert best is not None
    found = {one.name: one for one in what_ifs(ask, best)}
    free = found["communication takes no time"].tokens_per_gpu
    assert all(one.tokens_per_gpu <= free * 1.001 for one in found.values())
    assert found["NICs twice as fast"].tokens_per_gpu >= best.tokens_per_gpu * 0.999
    assert "NVLink domains of 16 GPUs" in found
    assert found["a GPU dies"].tokens_per_gpu < best.tokens_per_gpu


def test_a_dead_gpu_takes_a_group_or_a_replica() -> None:
    """Seven of eight groups go on if they hold all experts; a replica with one group stops."""
    wide, narrow = point("dp=8,ep=8"), point("tp=8")
    ask = asked("hw-dgx-h200", 8, tpot_ms=200.0)
    found = _dead_gpu(ask, wide)
    assert found.how == "7 of 8 groups go on"
    assert _balanced(found, 0) == " with EPLB"  # three slots hold copies
    assert _balanced(found, 3) == _balanced(_dead_gpu(replace(ask, gpus=32), replace(narrow, replicas=4)), 0) == ""
    assert found.point is not None
    assert found.point.replica.layout == ServeLayout(dp=7, ep=7, slots=3)
    assert 0.3 * wide.tokens_per_gpu < found.tokens_per_gpu < wide.tokens_per_gpu  # five more experts take most of the cache
    assert _dead_gpu(ask, narrow).tokens_per_gpu == 0  # four GPUs have no room
    assert "nothing that is left" in _dead_gpu(ask, narrow).how
    found = _dead_gpu(replace(ask, gpus=32), replace(narrow, replicas=4))
    assert found.how == "3 of 4 replicas go on"
    assert found.tokens_per_gpu == pytest.approx(0.75 * narrow.tokens_per_gpu)


def test_a_dead_gpu_of_two_nodes_leaves_the_other_node() -> None:
    ask = asked("hw-dgx-h200-x2", 16, layouts="tp=8,ep=8,pp=2")
    best = ask.best()
    assert best is not None
    found = _dead_gpu(ask, best)
    assert found.how == "8 of 16 GPUs start anew"
    assert found.point is not None
    alone = replace(ask, gpus=8, layouts=None).best()
    assert alone is not None
    assert found.point.replica.layout == alone.replica.layout
    assert found.tokens_per_gpu == alone.tokens_per_gpu / 2


def test_disaggregated_prefill() -> None:
    """Pools keep the limits, use no more GPUs than there are, and answer each other's rates; one GPU too few leaves nothing."""
    ask = asked("hw-dgx-h200-x2", 16)
    found = best_disaggregated(ask.start, ask.engine, ask.scenario, 16, ask.ttft, ask.tpot, ask.layouts)
    assert found is not None
    assert found.served.tpot <= ask.tpot
    assert found.served.ttft <= ask.ttft
    used = found.prefill_workers * found.prefill.gpus + found.decode_workers * found.decode.gpus
    assert used + found.idle == 16
    assert found.tokens_per_gpu == pytest.approx(found.served.rate * 500 / 16)
    assert best_disaggregated(ask.start, ask.engine, ask.scenario, 8, ask.ttft, ask.tpot, ask.layouts) is None
    assert best_disaggregated(ask.start, ask.engine, ask.scenario, 16, ask.ttft, 100.0, ask.layouts) is None


def test_the_cache_on_its_way() -> None:
    """4,096 tokens of latent: 288 MB over one NIC of 400 Gb/s take 5.8 ms; the GPUs of a tensor parallel group send a part each."""
    one, eight = replica("hw-dgx-h200-x2", "dp=8,ep=8"), replica("hw-dgx-h200-x2", "tp=8")
    assert transfer_us(one, 4096, 16) / 1e3 == pytest.approx(5.8, rel=0.15)
    assert transfer_us(one, 4096, 16) / transfer_us(eight, 4096, 16) == pytest.approx(8, rel=0.1)
    assert transfer_us(one, 4096, 8) < transfer_us(one, 4096, 16) / 5


@pytest.mark.parametrize(("engine", "layout", "slow"), [
    ("trtllm", "dp=8,ep=8", True), ("sglang", "tp=8", True), ("sglang", "tp=8,ep=8", True), ("sglang", "dp=8,ep=8", False), ("vllm", "tp=8", False),
])  # fmt: skip
def test_who_takes_the_kernel_with_scales_of_blocks(engine: str, layout: str, slow: bool) -> None:
    """On Blackwell in FP8: TensorRT-LLM always, SGLang where DeepEP moves no rows. On Hopper nobody."""
    for cluster in ("hw-dgx-b200", "hw-dgx-h200"):
        assert (engine_of(engine).runs(replica(cluster, layout)).machine.regime.grouped == "trtllm-gen-blocks") == (slow and "b200" in cluster)


@pytest.mark.parametrize(("engine", "cluster", "own"), [
    ("vllm", "hw-dgx-b200", True), ("trtllm", "hw-gb200-nvl72", True), ("sglang", "hw-dgx-b200", True), ("vllm", "hw-dgx-h200", False),
])  # fmt: skip
def test_who_takes_the_kernel_of_four_bits_and_bf16_rows(engine: str, cluster: str, own: bool) -> None:
    """gpt-oss on Blackwell (vLLM's log: "Using FlashInfer MXFP4 BF16 backend for SM100, for faster performance ... MXFP8"): few rows read four bits,
    many multiply as BF16 weights do, and no slower than MXFP8 rows do at twice the rate. INT4 stays with Marlin."""
    machine, narrow = (engine_of(engine).runs(replica(cluster, "tp=1", "gpt-oss-120b", name)).machine for name in ("mxfp4", "int4"))
    assert (machine.regime.narrow == "trtllm-gen") == own
    assert narrow.regime.narrow == "marlin"
    few, many = (machine.gemm(rows, 5760, 2880, "bf16", 128.0, weight_bytes=0.53125) for rows in (1, 1024))
    read = machine.floor + machine.stream(128 * 5760 * 2880 * 0.53125) / machine.constants["serving.experts_stream"]
    wide, mxfp8 = (machine.gemm(1024, 5760, 2880, dtype, 128.0, weight_bytes=held) for dtype, held in (("bf16", 2.0), ("fp8", 0.53125)))
    if own:
        assert few == pytest.approx(read)
        assert mxfp8 < many < 1.01 * wide


def test_caches_wait_for_rows_on_one_nic() -> None:
    """Of two domains every second row of a token passes NICs, in 58 layers: what passes beside it waits, at most as long as it takes alone. Nothing
    waits where experts stay inside a domain."""
    both, near = replica("hw-dgx-h200-x2", "dp=16,ep=16"), replica("hw-dgx-h200-x2", "dp=8,ep=8")
    rows = 4096 * Peers(16).copies(both.model.layer, 2) / 2
    rows_us = 58 * rows * sum(row_bytes(both)) / both.machine.nic
    assert beside_caches_us(both, 4096, 4 * rows_us, 100.0) == pytest.approx(25)
    assert beside_caches_us(both, 4096, rows_us / 4, 100.0) == 100
    assert beside_caches_us(near, 4096, 4 * rows_us, 100.0) == 0


def test_more_prefill_workers_shorten_the_queue() -> None:
    scenario = Scenario(256.0, 4000.0, 500.0)
    table = StepTable(replica(layout="dp=8,ep=8"), replace(engine_of("sglang"), mixed=False), scenario)
    first, second = (_steady_pools(WorkerPool(table, n), WorkerPool(table, 1), scenario) for n in (1, 3))
    assert second.ttft < first.ttft
    assert second.rate > first.rate


def test_no_more_prompts_come_than_their_caches_leave() -> None:
    """400 MB of cache of a prompt over a link of 1 GB/s: one prefill worker serves two requests a second, not eight as its products would."""
    asked: dict[str, Any] = {"layouts": ["tp=1"], "slo": "ttft=9s,tpot=50ms"}
    slow, fast = (serve("qwen3-30b", f"hw-dgx-h100,link_GBps={rate}", **asked).disaggregated for rate in (1, 450))
    assert slow is not None
    assert fast is not None
    assert 0.9 < slow.served.rate * slow.transfer / 1e6 / slow.prefill_workers <= 1
    assert fast.served.rate * slow.transfer / 1e6 / fast.prefill_workers > 4


def test_drafts_pay_above_an_acceptance() -> None:
    """One draft of DeepSeek-R1 at 81 % answers 1.63 times as fast with few requests (TP8); more drafts need more."""
    few = point("tp=8", tpot_ms=15.0)
    assert 0.05 < break_even(few, 1) < 0.6
    assert break_even(few, 1) < break_even(few, 4)
    one = decode_batch(Scenario(1.0, 1000.0, 500.0), 1.0)
    ratio = step_time(few.replica, replace(one, queries=2)).device / step_time(few.replica, one).device
    assert 1.81 / ratio == pytest.approx(1.63, rel=0.1)


def test_kernels_of_deepep_by_name() -> None:
    """With few tokens an engine that has both takes the low-latency kernels, with many the normal ones; a flag of vLLM has one kind alone."""
    base = replica("hw-dgx-h200", "dp=8,ep=8")
    at = lambda name, tokens, **more: exchange(replace(base, ep_system=name, **more), tokens)  # noqa: E731
    for tokens, alike, other in ((64, "deepep-ll", "deepep-normal"), (8192, "deepep-normal", "deepep-ll")):
        both = at("deepep", tokens)
        assert both == at(alike, tokens) == at("", tokens)
        assert both.dispatch + both.combine < 0.9 * sum((at(other, tokens).dispatch, at(other, tokens).combine))
    assert at("", 64, ep_by_flag=True) == at("deepep-normal", 64)
    wide = replica("hw-gb200-nvl72", "dp=32,ep=32")  # all tokens of 32 GPUs, not those of 8 experts
    slow, fast = (step_time(replace(wide, ep_system=name), StepBatch(decodes=512, context=1000)).device for name in ("allgather", "trtllm-a2a"))
    assert slow > 1.2 * fast


def test_what_ifs_of_software_are_the_answers_that_options_give() -> None:
    given: dict[str, Any] = {"engine": "sglang", "layouts": ["dp=8,ep=8"], "slo": "tpot=80ms"}
    done = serve("deepseek-v3", "hw-dgx-h200", what_if=True, **given)
    found = {one.name: one.tokens_per_gpu for one in done.what_ifs}
    same = {
        "EP system deepep-normal": {"ep_system": "deepep-normal"},
        "EP system allgather": {"ep_system": "allgather"},
        "KV cache in FP8": {"kv": "fp8"},
        "a draft token, 80% accepted": {"mtp": 1},
    }
    assert same.keys() <= found.keys()
    assert "EP system deepep" not in found  # what it has
    for name, option in same.items():
        assert found[name] == serve("deepseek-v3", "hw-dgx-h200", **given, **option).best[0].tokens_per_gpu, name


def test_simulated_ep_systems() -> None:
    """A layer of a decode step as Programs: within 25 % of closed forms; longer than its MoE layer; a longer layer gives a longer TPOT."""
    best = point("dp=8,ep=8", tpot_ms=60.0)
    (found,) = ep_systems(best, ["deepep-ll"])
    assert found.layer == pytest.approx(found.closed, rel=0.25)
    assert found.merged == pytest.approx(found.closed_whole, rel=0.25)
    assert found.merged > found.layer
    assert (found.tpot_ms > best.served.tpot / 1e3) == (found.merged > found.closed_whole)
    with pytest.raises(ConfigError, match="expected a layout whose attention groups share experts"):
        ep_systems(point("tp=8"), ["deepep-ll"])


@pytest.mark.parametrize(("layout", "within"), [("tp=8", 0.05), pytest.param("dp=8,ep=8", 0.35, marks=pytest.mark.slow)])
def test_merged_layers_beside_closed_forms(layout: str, within: float) -> None:
    """All-reduces as Programs: within 5 %. Dispatch and combine: within 35 %. One GPU has none."""
    best = point(layout)
    found = merged_layers(best)
    assert list(found) == ["decoding", "prompts"]
    for layer in found.values():
        assert layer.merged == pytest.approx(layer.closed, rel=within)
        assert layer.merged > layer.alone
    assert merged_layers(replace(best, replica=replica(layout="tp=1", model="llama3-8b"))) == {}


def test_overlap_at_a_point() -> None:
    assert overlap_of(point("tp=8")) is None
    found = overlap_of(point("dp=8,ep=8"))
    assert found is not None
    assert found.gain < 0  # inside a domain messages are short


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_line_names_kernels_that_the_machine_does_not_have(engine: str) -> None:
    """DeepEP needs a switch, as `compare` and `advise` say; the line named it on AMD's GPUs."""
    done = serve("deepseek-v3", "hw-mi355x", layouts=["dp=8,ep=8"], engine=engine)
    assert done.best[0].system == "allgather"
    assert "deepep" not in done.launch()
    with pytest.raises(ConfigError, match="EP system 'deepep': no kernels for hw-mi355x"):
        serve("deepseek-v3", "hw-mi355x", ep_system="deepep")
