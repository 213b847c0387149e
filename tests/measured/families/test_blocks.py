"""Families `mla-block`, `sparse-block`, `linear-attention` and `nccl-small`: what they read, refuse and predict."""

from collections.abc import Iterable

import numpy as np
import pytest

from dysharp.costs.operators import hbm_us
from dysharp.measured.family import Missing, Parsed, classify
from dysharp.measured.measurements import measurements_from_csv, read_operators
from dysharp.measured.predictions import ClosedForms, errors_of, measured_values
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from tests.measured.csv_lines import HEADER, line

SHAPE = {"batch": 8, "q_len": 1, "past_len": 4096, "heads": 16}
BLOCK = SHAPE | {"architecture": "DeepseekV3ForCausalLM", "gemm_dtype": "bfloat16", "kv_dtype": "bfloat16"}


@pytest.fixture(scope="module")
def parsed() -> tuple[Parsed, ...]:
    return classify(read_operators()).parsed


def one(kind: str, **config: object) -> Parsed | Missing:
    text = f"{HEADER}\n{line('x', kind=kind, system='vLLM 0.24.0', hardware='H200-SXM', config=config, value=50)}\n"
    return classify(measurements_from_csv(text, "x")).entries[0]


def us(*entries: Parsed | Missing) -> list[float]:
    assert all(isinstance(entry, Parsed) for entry in entries)
    return [float(ClosedForms([entry]).us(fitted_values())[0]) for entry in entries if isinstance(entry, Parsed)]


@pytest.mark.parametrize(
    ("family", "system", "least", "median"),
    [
        ("mla-block", "TensorRT", 60, 13.4),  # 13.0 before one clock (docs/deviations.md)
        ("mla-block", "vLLM", 65, 9.0),
        ("sparse-block", "vLLM", 15, 13.0),
        ("sparse-block", "SGLang", 20, 24.0),
        ("hyper-connection", "TensorRT", 3, 3.0),
        ("linear-attention", "TensorRT", 30, 27.0),
    ],
)
def test_errors_of_the_packaged_rows_are_of_a_known_size(parsed: Iterable[Parsed], family: str, system: str, least: int, median: float) -> None:
    rows = [e for e in parsed if e.family.name == family and e.measurement.system.startswith(system)]
    found = errors_of(ClosedForms(rows).values(fitted_values()), measured_values(rows))
    assert found.n >= least
    assert found.median_ape < median


def test_a_block_grows_with_its_cache_and_is_more_than_its_attention() -> None:
    short, long = us(one("mla_block_generation", **BLOCK), one("mla_block_generation", **BLOCK | {"past_len": 1 << 17}))
    (attention,) = us(one("mla_generation", kernel="flashmla", dtype="bfloat16", **BLOCK))
    assert attention < short < long


def test_norms_and_positions_of_vllm_are_kernels_of_pytorch_but_on_b200() -> None:
    def pair(hardware: str, kind: str = "mla_block_context", **config: object) -> list[float]:
        shape = BLOCK | {"past_len": 0} | config
        names = ("vLLM 0.24.0", "TensorRT-LLM")
        lines = (line("x", kind=kind, system=name, hardware=hardware, config=shape, value=50) for name in names)
        return us(*(classify(measurements_from_csv(f"{HEADER}\n{text}\n", "x")).entries[0] for text in lines))

    (one, fused), (two, more) = (pair("H200-SXM", q_len=n) for n in (512, 1024))
    moved = 8 * 512 * (36 * (1536 + 512) + 24 * 17 * 64 - 4 * (1536 + 576))  # less the kernel that does both norms
    assert np.isclose((two - more) - (one - fused), hbm_us(load_gpu("h200-sxm"), fitted_values(), moved))
    assert one > fused + 30 * fitted_values()["attention.light_us"]
    first, second = pair("B200-SXM", q_len=512)
    assert first == second
    sparse = {"architecture": "DeepseekV32ForCausalLM", "batch_size": 8, "isl": 1, "num_heads": 16, "gemm_type": "bfloat16", "step": 64}
    (index, without), (dense, alone) = pair("GB200", "dsa_block_generation", **sparse), pair("GB200", "mla_block_generation", past_len=64)
    values = fitted_values()
    assert np.isclose(index - without - (dense - alone), (17 - 11) * (values["gpu.kernel_us"] + values["serving.gap_us"]))


def test_tensorrt_llm_decodes_with_an_indexer_by_eleven_kernels_more_and_on_hopper_in_one_block_of_threads() -> None:
    def block(hardware: str, system: str, batch: int = 1, heads: int = 1) -> float:
        config = {"architecture": "DeepseekV32ForCausalLM", "batch_size": batch, "isl": 1, "num_heads": heads, "gemm_type": "bfloat16", "step": 4096}
        text = line("x", kind="dsa_block_generation", system=system, hardware=hardware, config=config | {"kv_cache_dtype": "bfloat16"}, value=50)
        return us(classify(measurements_from_csv(f"{HEADER}\n{text}\n", "x")).entries[0])[0]

    values = fitted_values()
    more = {gpu: block(gpu, "TensorRT-LLM") - block(gpu, "SGLang 0.5.14") for gpu in ("B200-SXM", "H200-SXM")}
    assert np.isclose(more["B200-SXM"], 11 * (values["gpu.kernel_us"] + values["serving.gap_us"]))
    assert more["H200-SXM"] > more["B200-SXM"] + 40  # 32 steps of 64 chosen keys, where other kernels split them
    full, over = (block("H200-SXM", "TensorRT-LLM", load_gpu("h200-sxm").n_sms + one) for one in (0, 1))
    assert over > full + 30  # one wave of thread blocks more


def test_prompts_with_an_indexer_take_the_launches_of_their_host() -> None:
    """vLLM's 17 kernels beside the indexer's products; SGLang's keys alone; none where a layer takes another's choice."""
    sparse = {"architecture": "GlmMoeDsaForCausalLM", "batch_size": 1, "num_heads": 8, "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16"}

    def block(hardware: str, isl: int, past: int, kernel: str = "sglang_dsa_indexer_trtllm", system: str = "SGLang 0.5.14") -> float:
        config = sparse | {"isl": isl, "step": past, "kernel": kernel}
        text = line("x", kind="dsa_block_context", system=system, hardware=hardware, config=config, value=50)
        return us(classify(measurements_from_csv(f"{HEADER}\n{text}\n", "x")).entries[0])[0]

    launch = fitted_values()["h100.host_call_us"]
    whole = block("H100-SXM", 16, 4096)
    assert whole == pytest.approx(29 * launch) == block("H100-SXM", 64, 4096)
    assert block("GB200", 16, 4096) == pytest.approx(1.45 * whole)
    assert block("H100-SXM", 16, 4096, "sglang_dsa_skip_indexer_trtllm") == pytest.approx(8 * launch)
    assert block("H100-SXM", 16, 1024) == pytest.approx(16 * launch)
    assert block("H100-SXM", 16, 4096, system="TensorRT-LLM") < whole / 5  # a graph
    assert block("H100-SXM", 16, 4096, system="vLLM 0.24.0") == pytest.approx(58 * launch)
    long, padded = (block("GB200", 8192, 32768, f"sglang_dsa_indexer_{name}") for name in ("trtllm", "flashmla_sparse"))
    assert 1.2 * long < padded < 2 * long  # 128 heads for 64, attention alone
    assert block("H100-SXM", 8192, 32768) == block("H100-SXM", 8192, 32768, "sglang_dsa_indexer_flashmla_sparse")


def test_an_indexer_reads_the_whole_cache_and_attention_a_part_of_it() -> None:
    sparse = BLOCK | {"architecture": "DeepseekV32ForCausalLM", "batch_size": 8, "isl": 1, "num_heads": 16, "gemm_type": "bfloat16"}
    near, far = us(*(one("dsa_block_generation", **sparse | {"step": past}) for past in (1 << 15, 1 << 17)))
    (dense,) = us(one("mla_block_generation", **BLOCK | {"past_len": 1 << 17}))
    assert near < far < dense


@pytest.mark.parametrize(
    ("key", "value", "words"), [("architecture", "Other", "not packaged"), ("gemm_dtype", "int2", "not packaged"), ("heads", 3, "3 heads")]
)
def test_what_no_model_has_is_named(key: str, value: object, words: str) -> None:
    entry = one("mla_block_context", **BLOCK | {key: value})
    assert isinstance(entry, Missing)
    assert words in entry.reason


def test_chunks_of_a_delta_net_wait_for_each_other_in_one_kernel_or_in_eight() -> None:
    heads = {"d_conv": 4, "batch_size": 1, "num_k_heads": 8, "num_v_heads": 8, "head_k_dim": 128, "head_v_dim": 128, "phase": "context"}
    times = {
        (kernel, tokens): us(one("linear_attention_gdn", kernel=kernel, seq_len=tokens, **heads))[0]
        for kernel in ("chunk_gated_delta_rule", "chunk_gated_delta_rule_flashinfer")
        for tokens in (64, 64 * 64)
    }
    assert np.isclose(times["chunk_gated_delta_rule_flashinfer", 4096] - times["chunk_gated_delta_rule_flashinfer", 64], 63 * 3.1, rtol=0.1)
    assert all(times["chunk_gated_delta_rule", n] > times["chunk_gated_delta_rule_flashinfer", n] for n in (64, 4096))
    assert isinstance(one("linear_attention_gdn", kernel="other", seq_len=1, **heads), Missing)


def test_a_convolution_with_a_block_for_each_channel_waits_for_its_blocks_and_one_that_decodes_reads_its_rows() -> None:
    shape = {"d_conv": 4, "num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128, "phase": "context", "batch_size": 64}
    kernel = {"kernel": "causal_conv1d_fn", "seq_len": 1}
    triton, decode = us(one("linear_attention_gdn", **shape | kernel), one("linear_attention_gdn", **shape | kernel | {"phase": "generation"}))
    text = line("x", kind="linear_attention_gdn", system="TensorRT-LLM", hardware="H200-SXM", config=shape | kernel, value=50)
    (cuda,) = us(classify(measurements_from_csv(f"{HEADER}\n{text}\n", "x")).entries[0])
    assert triton < decode < cuda
    long, many = ({"seq_len": n, "batch_size": b} for n, b in ((4096, 1), (8, 512)))
    once, spread = us(*(one("linear_attention_gdn", **shape | kernel | tokens) for tokens in (long, many)))
    moved, values, gpu = 4096 * 8192, fitted_values(), load_gpu("h200-sxm")
    issued = 2 * moved * (2 + 3 / 8) / (gpu.n_sms * gpu.boost_MHz * values["sm.permute_bytes"])  # three rows for each eight
    assert np.isclose(once - values["gpu.kernel_us"] - values["serving.gap_us"], issued)
    assert np.isclose(once, spread)
    assert np.isclose(cuda - values["serving.gap_us"], values["gpu.kernel_us"] * 64 * 8192 / (132 * 16))


def test_a_small_collective_takes_its_start_whatever_its_size() -> None:
    rows = [one("nccl", op="reduce_scatter", gpus=8, bytes=size) for size in (512, 1 << 16, 1 << 20, 1 << 21)]
    assert [row.family and row.family.name for row in rows] == ["nccl-small"] * 3 + ["nccl"]
    start, more, most = us(*rows[:3])
    assert start < more < most < 3 * start
