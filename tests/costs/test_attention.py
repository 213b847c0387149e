"""Forms of core attention: counts against sums over pairs, limits, and order."""

import numpy as np
import pytest

from dysharp.costs.attention import AttentionCall, _flash_parts, _key_bytes, _own_bytes, attention_flops, attention_us, cached_us, decode_us, pairs
from dysharp.costs.machine import Machine, number
from dysharp.specs import load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import list_gpus, load_gpu

HEAD = {"heads": 32, "kv_heads": 8, "qk_dim": 128, "v_dim": 128}
LATENT = {"kv_heads": 1, "qk_dim": 576, "v_dim": 512, "latent": True}
PREFILL = AttentionCall(batch=2, queries=2048, **HEAD)


def moved_bytes(call: AttentionCall) -> float:
    return float(_own_bytes(call) + _key_bytes(call))


@pytest.mark.parametrize(("queries", "past", "window"), [(7, 0, 0), (7, 5, 0), (7, 5, 3), (7, 0, 3), (4, 2, 4), (1, 9, 0), (1, 9, 4)])
def test_pairs_are_what_a_mask_counts(queries: int, past: int, window: int) -> None:
    row, column = np.arange(past, past + queries)[:, None], np.arange(past + queries)
    mask = (column <= row) & ((window == 0) | (column > row - window))
    call = AttentionCall(batch=1, queries=queries, past=past, window=window, **HEAD)
    assert float(pairs(call)) == mask.sum()
    assert float(attention_flops(call)) == mask.sum() * 2 * 32 * 256
    keys = mask.any(axis=0).sum()
    assert moved_bytes(call) == 2 * (queries * 32 * 256 + keys * 8 * 256)


def test_latent_values_are_read_with_their_keys() -> None:
    assert moved_bytes(AttentionCall(batch=1, queries=1, past=999, heads=128, **LATENT)) == 2 * (128 * (576 + 512) + 1000 * 576)


@pytest.mark.parametrize("gpu", [name for name in list_gpus() if not name.startswith("mi")])
def test_no_call_beats_the_peak_or_the_memory(gpu: str) -> None:
    g, v = load_gpu(gpu), fitted_values()
    expanded = AttentionCall(batch=1, queries=8192, heads=128, kv_heads=128, qk_dim=192, v_dim=128)
    for call in (PREFILL, expanded, AttentionCall(batch=1, queries=16384, causal=False, **HEAD)):
        for direction in ("forward", "backward"):
            least = float(attention_flops(call, direction)) / (1e6 * g.bf16_TFLOPS)
            assert least < float(attention_us(g, v, call, direction))
    for call in (AttentionCall(batch=64, queries=1, past=8192, heads=16, **LATENT), AttentionCall(batch=64, queries=1, past=8191, **HEAD)):
        assert moved_bytes(call) / (1e3 * g.hbm_GBps) < float(decode_us(g, v, call))


def test_more_work_takes_longer() -> None:
    g, v = load_gpu("h200-sxm"), fitted_values()
    lengths = np.array([1, 64, 128, 129, 1000, 4096, 4097, 30000])
    for window in (0, 512):
        times = attention_us(g, v, AttentionCall(batch=4, queries=lengths, window=window, **HEAD))
        assert (np.diff(times) >= 0).all()
        assert (np.diff(decode_us(g, v, AttentionCall(batch=4, queries=1, past=lengths, window=window, **HEAD))) >= 0).all()
    chunk, cached = (attention_us(g, v, AttentionCall(batch=1, queries=2048, past=past, **HEAD)) for past in (0, 8192))
    assert chunk < cached


def test_a_longest_tile_that_starts_last_is_waited_for() -> None:
    """Equal tiles take whole waves either way. Tiles that grow with their place take half a tile longer, about a fifth of a wave and a half."""
    gpu, constants = load_gpu("b200"), fitted_values()
    call = {"batch": 1, "queries": 2048, "heads": 1.5 * gpu.n_sms / 16, "kv_heads": 1.5 * gpu.n_sms / 16, "qk_dim": 128, "v_dim": 128}
    last, first = (float(attention_us(gpu, constants, AttentionCall(longest_first=way, **call))) for way in (False, True))
    assert last > 1.2 * first
    last, first = (float(attention_us(gpu, constants, AttentionCall(longest_first=way, causal=False, **call))) for way in (False, True))
    assert last == first


def test_a_tile_of_few_queries_is_cheap_on_blackwell_and_parts_meet_in_a_cluster_up_to_sixteen() -> None:
    b200, v = load_gpu("b200"), fitted_values()
    few, many = (float(decode_us(b200, v, AttentionCall(batch=2048, queries=1, past=127, heads=h, kv_heads=1, qk_dim=64, v_dim=64))) for h in (8, 64))
    assert few < many
    ends = [float(decode_us(b200, v, AttentionCall(batch=1, queries=1, past=128 * n - 1, **HEAD | {"heads": 8, "kv_heads": 1}))) for n in (1, 16, 17)]
    assert ends[2] - ends[1] > v["attention.light_us"] > ends[1] - ends[0] >= 0


def test_flash_attention_splits_no_four_blocks_and_gives_an_sm_a_tenth_more_than_an_even_share() -> None:
    gpu = load_gpu("h100-sxm")
    blocks, tiles = np.array([1.0, 4.0, 5.0, 128.0, 128.0, 128.0]), np.array([1.0, 1.0, 1.0, 1.0, 32.0, 200.0])
    assert _flash_parts(gpu, tiles, blocks).tolist() == [1, 1, 5, 64, 4, 1]  # 132 SMs: 1, 2, 35 and 214 blocks each


def test_the_backward_pass_multiplies_three_widths_of_keys_and_two_of_values() -> None:
    """MLA: (3 x 192 + 2 x 128) / (192 + 128) = 2.6; on a paper cluster too. It writes the gradients of keys and values."""
    machine = Machine(load_cluster("paper-dgx-h100"))
    for qk, v, products in ((192, 128, 2.6), (128, 128, 2.5)):
        call = AttentionCall(batch=1, queries=4096, heads=16, kv_heads=16, qk_dim=qk, v_dim=v)
        assert attention_flops(call, "backward") == pytest.approx(products * float(attention_flops(call)))
        part = number("step.attention_forward_part") / number("step.attention_backward_part")
        assert machine.attention(call, "backward") == pytest.approx(products * part * machine.attention(call))
        assert _key_bytes(call, "backward") == 2 * _key_bytes(call) == 2 * 2 * 16 * 4096 * (qk + v)


def test_a_cache_by_head_is_written_at_the_waits_of_a_block_of_threads_for_each_token() -> None:
    """4 heads of 128 fill a block: three waits, four blocks on an SM. 64 heads are four for each of 16 warps; much data is bound by memory."""
    gpu, values = load_gpu("b200"), fitted_values()

    def us(tokens: int, kv_heads: int, width: int = 128) -> float:
        call = AttentionCall(batch=1, queries=tokens, heads=64, kv_heads=kv_heads, qk_dim=width, v_dim=width)
        return float(cached_us(gpu, values, call)) - values["gpu.kernel_us"]

    wait = 1000 / gpu.boost_MHz
    assert us(8192, 4) == pytest.approx(8192 / (4 * gpu.n_sms) * 3 * wait)
    assert us(8192, 2) == pytest.approx(us(8192, 4) / 2)
    assert us(8192, 64, 64) == pytest.approx(us(8192, 4) * 9 / 3)
    assert us(8192, 16, 1024) == pytest.approx(8192 * 16 * 2 * 1024 * 4 / (1e3 * gpu.hbm_GBps * values["hbm.fraction"]))
