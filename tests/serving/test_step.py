"""The steps of the spec's hand-worked cases, kernel by kernel, and identities of bytes and FLOPs."""

from dataclasses import replace
from typing import Any

import pytest

from dysharp import serve
from dysharp.base.errors import ConfigError
from dysharp.costs.attention import AttentionCall
from dysharp.costs.machine import machine_of
from dysharp.model.batch import StepBatch, prompt_batch
from dysharp.model.formats import formats_of
from dysharp.serving.balance import busiest
from dysharp.serving.engine import engine_of
from dysharp.serving.exchange import row_bytes
from dysharp.serving.layer import _expert_op
from dysharp.serving.layout import ServeLayout, serve_layout_of
from dysharp.serving.memory import kv_bytes, memory_of, weight_bytes
from dysharp.serving.search import search, within
from dysharp.serving.step import StepTable, draft_us, layer_ops, step_time
from dysharp.serving.two_batches import COMPUTE, RETURN, SEND, WAIT, _Action, _alternated_us, overlapped_us
from dysharp.serving.work import ELEMENT, Replica, Scenario
from dysharp.specs import load_cluster, load_whole


def replica(model: str, cluster: str, layout: str, precision: str = "fp8", kv: str = "bf16") -> Replica:
    return Replica(load_whole(model), formats_of(precision, kv), serve_layout_of(layout), machine_of(load_cluster(cluster), "serving"))


def by_name(r: Replica, batch: StepBatch, layer: int) -> dict[str, float]:
    sums: dict[str, float] = {}
    for op in layer_ops(r, batch, layer):
        sums[op.name] = sums.get(op.name, 0.0) + op.us
    return sums


def test_the_activation_of_a_dense_ffn_moves_the_values_of_every_matrix() -> None:
    """Between the matrix products of a gated FFN: two values in, one out."""
    r, tokens = replica("llama3-8b", "hw-dgx-h100", "tp=1", "bf16"), 4096
    width, hidden = r.model.dense_hidden, r.model.hidden
    found = by_name(r, StepBatch(decodes=tokens, context=1), 0)["dense FFN"]
    products = sum(r.machine.gemm(tokens, *shape, "bf16", weight_bytes=2.0) for shape in ((2 * width, hidden), (hidden, width)))
    assert r.model.dense_matrices == 3
    assert found - products == pytest.approx(r.machine.memory(ELEMENT * tokens * width * 3))


@pytest.mark.parametrize(
    ("model", "precision", "layout", "gigabytes"),
    [
        ("deepseek-v3", "fp8", "tp=8", 84.0),
        ("deepseek-v3", "fp8", "dp=8,ep=8", 100.6),
        ("deepseek-v3", "fp8", "dp=32,ep=32,slots=32", 41.8),
        ("deepseek-v3", "fp8", "dp=72,ep=72,slots=32", 29.1),
        ("deepseek-v3", "fp8", "dp=144,ep=144,slots=32", 24.0),
    ],
)
def test_weights_of_a_gpu(model: str, precision: str, layout: str, gigabytes: float) -> None:
    """Weights per GPU of the worked layouts, within 2 %."""
    assert weight_bytes(replica(model, "hw-gb200-nvl72", layout, precision)) / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize(
    ("model", "kv", "layout", "tokens", "expected"),
    [
        ("deepseek-v3", "bf16", "tp=8", 1, 70_272),
        ("deepseek-v3", "fp8", "tp=1", 4096, 4096 * 35_136),
        ("qwen3-235b", "bf16", "tp=1", 1, 192_512),
        ("qwen3-235b", "bf16", "tp=8", 1, 192_512 / 4),  # four heads on eight GPUs: each is stored twice
        ("qwen3-32b", "bf16", "tp=1", 1, 262_144),
        ("llama3-70b", "fp8", "tp=1", 1, 163_840),
        ("minimax-m2.5", "bf16", "tp=1", 1, 253_952),
        ("gpt-oss-120b", "bf16", "tp=1", 1000, 36_864 * 1000 + 36_864 * 128),
        ("glm-5", "bf16", "tp=1", 1, 100_152),
        ("qwen3.5-397b", "bf16", "tp=1", 1000, 30_720 * 1000 + 45 * (64 * 128 * 128 * 4 + 12_288 * 3 * 2)),  # states, and inputs of convolutions
    ],
)
def test_cache_of_a_request(model: str, kv: str, layout: str, tokens: int, expected: float) -> None:
    assert kv_bytes(replica(model, "hw-dgx-h200", layout, kv=kv), tokens) == pytest.approx(expected)


def test_linear_attention_does_not_see_the_context() -> None:
    """A step of Qwen3.5 reads and writes 189 MB of states a request; a longer context costs its 15 other layers alone."""
    one = replica("qwen3.5-397b", "hw-dgx-h200", "tp=8")
    short, long = (step_time(one, StepBatch(decodes=64, context=context)).parts for context in (1000, 9000))
    assert short["linear attention decode"] == long["linear attention decode"]
    moved = 45 * 64 * 2 * 64 * 128 * 128 * 4 / 8  # bytes of one GPU of eight
    assert moved / 4.8e6 < short["linear attention decode"] < 1.5 * moved / 4.8e6
    assert short["attention decode"] < long["attention decode"]


def test_sparse_attention_reads_the_chosen_tokens_and_the_keys_of_all() -> None:
    one = replica("glm-5", "hw-dgx-h200", "tp=8")
    short, long = (step_time(one, StepBatch(decodes=64, context=context)).parts for context in (2048, 8 * 2048))
    assert short["attention decode"] == long["attention decode"]
    assert short["indexer"] < long["indexer"]
    assert sum(long.values()) < sum(step_time(replica("deepseek-v3", "hw-dgx-h200", "tp=8"), StepBatch(decodes=64, context=8 * 2048)).parts.values())


def test_dense_attention_of_prompts_expands_keys_and_values_of_every_head() -> None:
    r = replica("deepseek-v3", "hw-dgx-h200", "dp=8,ep=8")
    a, batch = r.model.attention, prompt_batch(8192, 2048)
    whole = AttentionCall(batch=4, queries=2048, heads=a.heads, kv_heads=a.heads, qk_dim=a.qk_dim, v_dim=a.v_dim, longest_first=True)
    assert by_name(r, batch, 10)["attention prefill"] == pytest.approx(r.machine.attention(whole), rel=1e-6)


def test_sparse_attention_of_prompts() -> None:
    """Prompts that see no more tokens than are chosen are dense; beyond, a query costs the same at any length, and few heads pad to 64."""
    sparse, dense = replica("deepseek-v3.2", "hw-dgx-h200", "dp=8,ep=8"), replica("deepseek-v3", "hw-dgx-h200", "dp=8,ep=8")

    def core(r: Replica, length: float, past: float = 0.0) -> float:
        return step_time(r, prompt_batch(8192, length, past)).parts["attention prefill"]

    assert core(sparse, 2048) == core(dense, 2048)
    assert core(sparse, 8192, 24576) == pytest.approx(core(sparse, 8192, 122880), rel=0.01)
    assert core(sparse, 8192, 122880) < core(dense, 8192, 122880) / 10
    least = 8192 * 2048 * 128 * 2 * (576 + 512) * 61 / 989e12 * 1e6
    assert least < core(sparse, 8192, 24576) < 2 * least
    tensor = replace(sparse, layout=serve_layout_of("tp=8"))
    assert core(tensor, 8192, 24576) == pytest.approx(core(sparse, 8192, 24576) / 2, rel=0.1)


def test_memory_limits() -> None:
    """EP72 on 80 GB holds about 553 k tokens of latent; EP8 with whole attention does not fit on 80 GB at all."""
    wide = memory_of(replica("deepseek-v3", "hw-dgx-h100-x8", "dp=32,ep=32,slots=32"), engine_of("sglang"), 2100)
    assert wide.requests > 100
    h100 = replica("deepseek-v3", "hw-dgx-h100", "dp=8,ep=8")
    assert memory_of(h100, engine_of("sglang"), 2100).requests == 0
    sizes = replica("deepseek-v3", "hw-dgx-h100-x8", "dp=32,ep=32,slots=32")
    at72 = weight_bytes(replace(sizes, layout=ServeLayout(dp=72, ep=72, slots=32)))
    assert (80e9 * 0.85 - at72) / 70_272 == pytest.approx(553e3, rel=0.03)


@pytest.mark.parametrize(("users", "rows"), [(4, 5.86), (16, 8.82), (64, 14.10), (128, 15.23)])
def test_minimax_on_eight_h200(users: int, rows: float) -> None:
    """The sum of kernels lies between the rows of single operators, which leave kernels out, and 1.6 times that sum."""
    step = step_time(replica("minimax-m2.5", "hw-dgx-h200", "tp=8"), StepBatch(decodes=users, context=1382))
    assert rows * 0.8 < step.device / 1e3 < rows * 1.6


@pytest.mark.parametrize(("users", "rows"), [(4, 9.8), (16, 17.6), (64, 26.7)])
def test_deepseek_on_eight_h200(users: int, rows: float) -> None:
    step = step_time(replica("deepseek-v3", "hw-dgx-h200", "tp=8"), StepBatch(decodes=users, context=1382))
    assert rows * 0.75 < step.device / 1e3 < rows * 1.6


@pytest.mark.parametrize(("users", "core"), [(32, 62.5), (64, 81.0), (128, 153.1)])
def test_latent_attention_of_an_h100(users: int, core: float) -> None:
    """Core of MLA with 128 heads and a cache of 2K, rows of SGLang on one H100."""
    got = by_name(replica("deepseek-v3", "hw-dgx-h100", "dp=8,ep=8"), StepBatch(decodes=users, context=2048), 10)
    assert got["attention decode"] == pytest.approx(core, rel=0.45)


def test_decode_with_ep_over_nodes() -> None:
    """96 H100 style decode: 256 requests of 2K per GPU. Messages take 931 us of a layer, experts about 150."""
    r = replica("deepseek-v3", "hw-dgx-h100-x8", "dp=64,ep=64,slots=0")
    got = by_name(r, StepBatch(decodes=256, context=2000), 10)
    assert got["dispatch"] + got["combine"] == pytest.approx(931, rel=0.2)
    assert 85 < got["experts"] < 260
    assert got["attention decode"] == pytest.approx(290, rel=0.4)


def test_a_prompt_costs_its_flops() -> None:
    """4,096 tokens of DeepSeek-V3 on eight H200: 81.4 GFLOP a token at the peak, at most eight times (measured: 29 us a token)."""
    r = replica("deepseek-v3", "hw-dgx-h200", "tp=8")
    least = 4096 * 81.4e9 / (8 * 1979e12) * 1e6
    assert least < step_time(r, prompt_batch(4096, 4096), 1).device < 8 * least


def test_more_work_takes_longer() -> None:
    r = replica("qwen3-235b", "hw-dgx-b200", "tp=4")
    few, many, long = (step_time(r, StepBatch(decodes=n, context=s)).device for n, s in ((8, 1000), (64, 1000), (64, 8000)))
    assert few < many < long
    mixed = step_time(r, StepBatch(decodes=64, context=1000, prompts=512, seen=256)).device
    assert many < mixed < many + step_time(r, prompt_batch(512, 512), 1).device


@pytest.mark.parametrize("text", ["", "tp=0", "tp=8,tp=4", "xp=8", "tp=8 ep=3", "tp=99999"])
def test_bad_layouts(text: str) -> None:
    with pytest.raises(ConfigError, match="layout"):
        serve_layout_of(text)


def test_layouts_that_do_not_fit_a_shape() -> None:
    v3, llama = load_whole("deepseek-v3"), load_whole("llama3-70b")
    assert serve_layout_of("dp=72,ep=72").conflicts(v3) == ["256 expert slots do not divide by EP72"]
    assert "no experts" in serve_layout_of("dp=2").conflicts(llama)[0]
    assert not serve_layout_of("dp=72,ep=72,slots=32").conflicts(v3)
    six = replace(llama, dense_hidden=24576, attention=replace(llama.attention, heads=48, kv_heads=6))
    assert [serve_layout_of(f"tp={n}").conflicts(six) for n in (1, 3, 6, 12)] == [[]] * 4  # each has a part, or copies
    assert serve_layout_of("tp=4").conflicts(six) == ["TP4 is no divisor and no multiple of 6 KV heads"]
    assert serve_layout_of("dp=6,ep=6,slots=2").conflicts(v3, 24, 8) == ["groups of 6 GPUs split NVLink domains of 8"]
    assert not serve_layout_of("dp=6,ep=6,slots=2").conflicts(v3, 6, 8)


@pytest.mark.parametrize(("tokens", "low", "high"), [(32, -0.35, -0.15), (64, -0.15, 0.1), (128, -0.1, 0.15), (256, 0.08, 0.4)])
def test_two_batch_overlap_by_batch(tokens: int, low: float, high: float) -> None:
    """Measured on nine nodes of H100: -27 % at 32 tokens per GPU, about 0 at 64 to 128, +25 % at 256."""
    r = replica("deepseek-v3", "hw-dgx-h100-x8", "dp=64,ep=64")
    batch = StepBatch(decodes=tokens, context=2000)
    assert low < step_time(r, batch).device / overlapped_us(r, batch) - 1 < high


def test_two_batch_overlap_of_prompts() -> None:
    """Measured on four nodes of H100, 16,384 tokens per GPU: +27 to +35 %."""
    r = replica("deepseek-v3", "hw-dgx-h100-x4", "dp=32,ep=32,slots=32")
    batch = prompt_batch(16384, 4096)
    assert 0.2 < step_time(r, batch).device / overlapped_us(r, batch) - 1 < 0.4


def test_stages_alternate() -> None:
    """Messages of one half hide behind computing of the other; what is longer than that is waited for."""
    stages = [(_Action(COMPUTE, 3.0), _Action(SEND, 2.0)), (_Action(WAIT), _Action(COMPUTE, 1.0))]
    assert _alternated_us(stages, 1, 0) == 9  # computing 3, 3 and 1; messages of the second half come at 8, and 1 is left
    assert _alternated_us([(_Action(COMPUTE, 3.0),)], 5, 2) == 30
    assert _alternated_us([(_Action(COMPUTE, 1.0), _Action(SEND, 9.0), _Action(WAIT))], 1, 0) == 20


def test_gpus_with_more_rows_are_waited_for() -> None:
    """With RETURN all wait for the GPU with most rows in every layer; a GPU that waits for its own messages alone catches up."""
    own, all_ = ([(_Action(COMPUTE, 10.0, 1.0), _Action(kind, 5.0), _Action(WAIT))] for kind in (SEND, RETURN))
    even = _alternated_us(own, 50, 0)
    assert _alternated_us(own, 50, 0, gpus=1) == even
    assert even < _alternated_us(own, 50, 0, gpus=64) <= _alternated_us(all_, 50, 0, gpus=64)
    late = [(_Action(COMPUTE, 10.0, cache=1.0), _Action(SEND, 5.0), _Action(WAIT))]
    assert _alternated_us(late, 50, 0, gpus=64) > 1.1 * even  # the same GPU is late in all layers


def test_the_busiest_gpu_by_chance() -> None:
    """n rows are n +- sqrt(n): of 64 GPUs with 2,048 rows each the busiest has 2.4 / sqrt(2,048) more. Few GPUs have popularity too."""
    wide = replica("deepseek-v3", "hw-dgx-h100-x8", "dp=64,ep=64")
    assert busiest(wide, 64 * 256) == pytest.approx(1 + 2.39 / 2048**0.5, rel=0.01)
    assert busiest(wide, 64 * 32) > busiest(wide, 64 * 256)
    assert busiest(replica("deepseek-v3", "hw-dgx-h200", "dp=8,ep=8"), 1e9) == pytest.approx(1.18, abs=0.02)
    assert busiest(replace(wide, even=True), 64) == busiest(replica("deepseek-v3", "hw-dgx-h200", "tp=8"), 64) == 1


def test_the_blog_of_wide_ep_op_by_op() -> None:
    """32 H100, 16,384 tokens of prompts per GPU, sum of operator rows 2.76 s, measured 2.8 to 3.0 s without overlap; 72 H100 decode in 115 ms."""
    prompts = replica("deepseek-v3", "hw-dgx-h100-x4", "dp=32,ep=32,slots=32")
    got = by_name(prompts, prompt_batch(16384, 4096), 10)
    module = sum(got[name] for name in ("q and kv down", "latent norms", "q up", "rope and cache", "kv up", "attention prefill", "attention out"))
    assert 0.75 <= module / 9730 <= 1.26  # 25.2 % too long, of the rows of the blog the only one beyond a fifth
    assert got["experts"] == pytest.approx(14265, rel=0.2)
    assert got["dispatch"] + got["combine"] == pytest.approx(21500, rel=0.2)
    assert step_time(prompts, prompt_batch(16384, 4096)).device / 1e6 == pytest.approx(2.9, rel=0.05)
    decode = replica("deepseek-v3", "hw-dgx-h100-x8", "dp=64,ep=64")
    assert step_time(decode, StepBatch(decodes=256, context=2000)).device / 1e3 == pytest.approx(115.2, rel=0.2)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 85.2), (32, 88), (64, 92.4), (128, 109.9)])
def test_experts_of_64_gpus(tokens: int, rows: float) -> None:
    """Rows of SGLang's masked experts, EP64 on H100, uniform choices."""
    r = replace(replica("deepseek-v3", "hw-dgx-h100-x8", "dp=64,ep=64"), loads=(1 / 256,) * 256, even=True)
    assert _expert_op(r, 64 * tokens).us == pytest.approx(rows, rel=0.25)


def test_identities() -> None:
    """Bytes of low-latency kernels, the time to read all weights once, and twice the GPUs of four requests: never twice as fast."""
    v3 = replica("deepseek-v3", "hw-dgx-h100", "dp=8,ep=8")
    sent, back = row_bytes(v3)
    assert 256 * 8 * (sent + 16) == pytest.approx(15.17e6, rel=0.01)
    assert 256 * 8 * back == pytest.approx(29.36e6, rel=0.01)
    oss = replica("gpt-oss-120b", "hw-dgx-b200", "tp=1", "mxfp4")
    assert weight_bytes(oss) / 7.7e12 == pytest.approx(8.3e-3, rel=0.05)
    for model, cluster, precision in (("minimax-m2.5", "hw-dgx-h200", "fp8"), ("deepseek-v3", "hw-dgx-b200", "fp4")):
        four, eight = (step_time(replica(model, cluster, f"tp={n}", precision), StepBatch(decodes=4, context=1400)).device for n in (4, 8))
        assert 1 < four / eight < 1.7


def test_a_draft_costs_a_layer_and_a_head() -> None:
    r = replica("deepseek-v3", "hw-dgx-h200", "tp=8")
    batch = StepBatch(decodes=8, context=2000)
    whole = step_time(r, batch).device
    assert whole / 61 < draft_us(r, batch, 1) < whole / 20
    two = step_time(r, replace(batch, queries=2)).device
    assert whole < two < 1.9 * whole  # twice the tokens touch more experts, and read the cache once


def test_an_mtp_layer_passes_over_every_token_of_a_step() -> None:
    """vLLM v1/spec_decode/eagle.py, propose: the first pass takes the tokens of the target's step, prompts among them; later ones a token each."""
    r = replica("deepseek-v3", "hw-dgx-h200", "tp=8")
    batch = StepBatch(decodes=64, context=2000, queries=3)
    one, two, three = (draft_us(r, batch, n) for n in (1, 2, 3))
    assert (draft_us(r, batch, 0), three - two) == (0.0, pytest.approx(two - one))
    assert two - one == pytest.approx(draft_us(r, replace(batch, queries=1), 1))
    assert one > 1.15 * (two - one)
    tables = [StepTable(r, engine_of("vllm"), Scenario(64.0, 4096.0, 512.0, 1 + 0.8 * n, n)) for n in (0, 1)]
    plain, drafted = (table.prompts_us(8192, 8192) for table in tables)
    assert 1 / 61 < drafted / plain - 1 < 2 / 61  # a layer, whose experts are routed, and the joining matrix


@pytest.mark.parametrize(("layout", "shared"), [("tp=1", 0.0), ("tp=2,pp=2", 7168 * 129_280 * 2 / 2)])
def test_drafts_hold_a_layer_and_its_cache(layout: str, shared: float) -> None:
    """11.5 B parameters of DeepSeek-V3 (its README_WEIGHTS.md), which share embedding and head: the last stage holds the embedding for them alone."""
    r = replica("deepseek-v3", "hw-dgx-h200", layout)
    drafting = replace(r, mtp=True)
    layer = (weight_bytes(drafting) - weight_bytes(r) - shared - 2 * 2 * 7168**2) * r.layout.tp  # what joins it is whole, and BF16
    assert 11.4e9 < layer < 11.6e9  # FP8, router, norms and what every GPU holds in BF16
    assert kv_bytes(drafting, 100.0) - kv_bytes(r, 100.0) == pytest.approx(70_272 / 61 * 100)


def test_experts_of_four_bits_are_read_at_their_own_width() -> None:
    """gpt-oss-120b on one H100, 32 requests: bytes of BF16 would take over 40 ms."""
    r = replica("gpt-oss-120b", "hw-dgx-h100", "tp=1", "mxfp4")
    four = step_time(r, StepBatch(decodes=32, context=1536)).parts["experts"]
    sixteen = step_time(replace(r, formats=formats_of("bf16")), StepBatch(decodes=32, context=1536)).parts["experts"]
    assert four < 22e3
    assert sixteen > 40e3


def test_one_rule_sets_engines_apart_where_groups_share_experts() -> None:
    """TensorRT-LLM's prompts wait for prompts of other groups; this rule alone brings vLLM most of the difference."""
    asked: dict[str, Any] = {"layouts": ["dp=8,ep=8"], "kv": "fp8", "slo": "tpot=50ms"}
    vllm, trtllm = (serve("deepseek-v3", "hw-dgx-h200", engine=name, **asked).best[0] for name in ("vllm", "trtllm"))
    assert trtllm.tokens_per_gpu > 2 * vllm.tokens_per_gpu
    rules = replace(vllm.table.engine, gathered_steps=trtllm.table.engine.gathered_steps)
    gathered = within(search(vllm.replica, rules, vllm.scenario, 8, [vllm.replica.layout])[0], 2e6, 50e3)
    assert vllm.tokens_per_gpu + trtllm.tokens_per_gpu < 2 * gathered[0].tokens_per_gpu < 2 * trtllm.tokens_per_gpu


def test_few_tokens_behind_a_long_cache_are_split_over_the_gpu() -> None:
    """One H20: 16 tokens behind 64 thousand take between the time of reading their keys and ten times that, and less than 128 tokens do."""
    r = replica("qwen3-30b", "hw-hgx-h20", "tp=1", "bf16")
    few, more = (step_time(r, prompt_batch(n, n, 64_000)).parts["attention prefill"] for n in (16, 128))
    read = r.machine.stream(kv_bytes(r, 64_000))
    assert read < few < 10 * read
    assert few < more < 16 * few


def test_a_router_in_fp32_runs_on_the_lanes() -> None:
    """11.6 GFLOP of 7,373 tokens and 256 experts: no faster than the lanes of 132 SMs, no slower than a third of them, on one GPU or eight."""
    batch, lanes = StepBatch(prompts=7373, seen=3686), 2 * 7373 * 3072 * 256 / (132 * 128 * 2 * 1830)
    for layout in ("tp=1", "tp=8"):
        r = replica("minimax-m2.5", "hw-dgx-h200", layout)
        plain = replace(r, model=replace(r.model, router_fp32=False))
        assert lanes < by_name(r, batch, 5)["router"] - by_name(plain, batch, 5)["router"] < 3 * lanes


def test_a_norm_of_all_heads_sums_over_ranks() -> None:
    """Two kernels and two FP32 values of a token more in a layer; on one GPU nothing."""
    one, batch = replica("minimax-m2.5", "hw-dgx-h200", "tp=1"), StepBatch(decodes=16, context=1024)
    assert "q and k norm" not in by_name(one, batch, 5)
    r = replace(one, layout=serve_layout_of("tp=8"))
    assert by_name(r, batch, 5)["q and k norm"] > r.machine.all_reduce(8, 8 * 16, r.reducers) + r.machine.floor
    assert "q and k norm" not in by_name(replica("qwen3-235b", "hw-dgx-h200", "tp=8"), batch, 5)


@pytest.mark.parametrize(
    ("layout", "tokens", "starts"), [("tp=8", 64, 2), ("tp=8", 128, 0), ("tp=4", 128, 2), ("tp=1", 1, 0), ("tp=4,dp=2,ep=8", 8, 0)]
)
def test_small_sums_and_norms_are_one_kernel(layout: str, tokens: int, starts: int) -> None:
    """vLLM on Hopper: up to 0.5 MiB with eight GPUs, 2 MiB with four; rows of 6 KiB."""
    r, batch = replica("minimax-m2.5", "hw-dgx-h200", layout), StepBatch(decodes=tokens, context=1024)
    saved = by_name(r, batch, 5)["norms"] - by_name(engine_of("vllm").runs(r), batch, 5)["norms"]
    assert saved == pytest.approx(starts * r.machine.floor)


@pytest.mark.parametrize(
    ("engine", "precision", "kv"),
    [("vllm", "fp4", "fp8"), ("vllm", "fp8", "bf16"), ("sglang", "fp4", "fp8"), ("trtllm", "fp8", "bf16"), ("trtllm", "fp4", "fp8"),
     ("trtllm", "mxfp4", "bf16"), ("trtllm", "bf16", "bf16")],
)  # fmt: skip
def test_the_checkpoint_says_what_is_cached(engine: str, precision: str, kv: str) -> None:
    """TensorRT-LLM: KvCacheConfig.dtype auto is what hf_quant_config.json says, which FP8 checkpoints by block have not."""
    model = load_whole("minimax-m2.5")
    assert engine_of(engine).cached(formats_of(precision, model=model), model, "blackwell") == kv


@pytest.mark.parametrize(("engine", "arch", "kv"), [("sglang", "blackwell", "fp8"), ("sglang", "hopper", "bf16"), ("vllm", "blackwell", "bf16")])
def test_sglang_caches_sparse_attention_in_fp8_on_blackwell(engine: str, arch: str, kv: str) -> None:
    """server_args.py: kv_cache_dtype auto of DeepSeek DSA is fp8_e4m3 if major >= 10 else bfloat16."""
    for name, one in (("deepseek-v3.2", kv), ("deepseek-v3", "bf16")):
        assert engine_of(engine).cached(formats_of("fp8"), load_whole(name), arch) == one
