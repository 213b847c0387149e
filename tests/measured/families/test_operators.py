"""Families `attention` and `operator`: what they read, refuse and predict."""

from dataclasses import replace

import numpy as np
import pytest

from dysharp.costs.attention import flash_tile, fmha_tile
from dysharp.costs.operators import KEPT, hbm_us, kept_part, light_us, quantise_us, sustained_flops_per_us
from dysharp.measured.families.dense_gemm import closed_us as dense_us
from dysharp.measured.family import Parsed, classify
from dysharp.measured.hold_out import hold_out_beyond
from dysharp.measured.measurements import measurements_from_csv, read_operators
from dysharp.measured.predictions import ClosedForms, errors_of, measured_values
from dysharp.specs.fitted import fitted, fitted_values
from dysharp.specs.gpu import load_gpu
from tests.measured.csv_lines import HEADER, line

ROW = {"batch": 64, "q_len": 1, "past_len": 4095, "heads": 32, "kv_heads": 4, "head_dim": 128, "dtype": "bfloat16", "kv_dtype": "bfloat16"}


@pytest.fixture(scope="module")
def parsed() -> tuple[Parsed, ...]:
    return classify(read_operators()).parsed


def of(parsed: tuple[Parsed, ...], family: str) -> list[Parsed]:
    return [entry for entry in parsed if entry.family.name == family]


def one(kind: str, system: str, hardware: str, **config: object) -> Parsed:
    text = f"{HEADER}\n{line('x', kind=kind, system=system, hardware=hardware, config=ROW | config, value=50)}\n"
    return classify(measurements_from_csv(text, "x")).parsed[0]


def us(entry: Parsed) -> float:
    return float(ClosedForms([entry]).us(fitted_values())[0])


def test_the_packaged_rows_have_predictions_and_errors_of_a_known_size(parsed: tuple[Parsed, ...]) -> None:
    """The bar of 8 % is missed (docs/deviations.md); these limits hold what is reached, with the rows that were left out for their values."""
    for family, least, median, p90 in (("attention", 830, 10.7, 30.0), ("operator", 310, 9.4, 29.0)):
        rows = of(parsed, family)
        found = errors_of(ClosedForms(rows).values(fitted_values()), measured_values(rows))
        assert found.n >= least
        assert found.median_ape < median
        assert found.p90_ape < p90


def test_training_gemms_and_attention(parsed: tuple[Parsed, ...]) -> None:
    for kinds, bar in ((("gemm_dense",), 8), (("attention_train_fwd", "attention_train_bwd"), 10)):
        rows = [entry for entry in parsed if entry.measurement.kind in kinds]
        assert errors_of(ClosedForms(rows).values(fitted_values()), measured_values(rows)).median_ape < bar


def _came_back(row: Parsed) -> bool:
    """FlashAttention-3 on an FP8 latent and SGLang's cast: judged since model version 19, left out when the constants were fitted."""
    config, kind = row.measurement.config, row.measurement.kind
    latent = (config.get("kernel"), kind, config.get("kv_dtype")) == ("flash_attention", "mla_generation", "fp8")
    return latent or (kind, config.get("kernel")) == ("quantize_static", "sglang")


def test_the_packaged_constants_are_those_of_the_fit(parsed: tuple[Parsed, ...]) -> None:
    from dysharp.measured.refit import refit

    rows = [row for row in of(parsed, "attention") + of(parsed, "operator") if not _came_back(row)]
    found = refit(rows, fitted(), rest=fitted_values())
    packaged = {name: c.value for name, c in fitted().items() if name.startswith("attention.")}
    assert {name: found.values[name] for name in packaged} == pytest.approx(packaged, rel=0.02)


@pytest.mark.slow
def test_errors_on_a_gpu_that_was_held_out(parsed: tuple[Parsed, ...]) -> None:
    rows = hold_out_beyond(parsed, fitted(), "gpu")
    assert [row["family"] for row in rows] == ["attention", "operator"]
    assert all(row["ratio"] <= 1.5 for row in rows)


def test_an_engine_pays_for_its_casts() -> None:
    times = {
        (engine, stored): us(one("attention_generation", engine, "B200-SXM", kv_dtype=stored, kernel="trtllm_mha"))
        for engine in ("SGLang 0.5", "vLLM 0.24")
        for stored in ("bfloat16", "fp8")
    }
    assert times["SGLang 0.5", "bfloat16"] == times["vLLM 0.24", "bfloat16"] > times["vLLM 0.24", "fp8"]
    assert times["SGLang 0.5", "fp8"] - times["vLLM 0.24", "fp8"] > 3 * fitted_values()["attention.light_us"] - 1e-6


def test_a_label_of_bf16_beside_an_fp8_cache() -> None:
    fp8, flash = (one("attention_context", "vLLM", "H100-SXM", q_len=4096, past_len=0, kv_dtype="fp8", kernel=k) for k in ("torch_flow", "fa3"))
    assert (fp8.case.dtype, flash.case.dtype) == ("fp8", "bf16")


@pytest.mark.parametrize(
    ("hardware", "changes", "masked"),
    [
        ("H100-SXM", {}, False),
        ("H100-SXM", {"kv_heads": 32}, True),  # no heads share keys
        ("H100-SXM", {"heads": 132}, True),  # 33 of them do
        ("H100-SXM", {"window": 128}, True),  # a BF16 cache longer than the window
        ("H100-SXM", {"window": 128, "kv_dtype": "fp8"}, False),
        ("H100-SXM", {"batch": 8, "past_len": 128}, True),  # 32 blocks are fewer than a quarter of 132
        ("H100-SXM", {"batch": 8, "past_len": 256}, False),
        ("B200-SXM", {"kv_heads": 32}, False),
        ("B200-SXM", {"kv_heads": 1}, False),
        ("B200-SXM", {"kv_heads": 1, "heads": 64}, True),
    ],
)
def test_tensorrt_llm_chooses_a_decode_kernel(hardware: str, changes: dict[str, object], masked: bool) -> None:
    case = one("attention_generation", "TensorRT-LLM 1.3", hardware, kernel="torch_flow", **changes).case
    assert (case.masked, case.lanes) == (masked, not masked and hardware == "H100-SXM")
    inside = masked or (hardware == "H100-SXM" and changes.get("kv_dtype") == "fp8")
    assert case.kernels == (0 if inside else 1)  # RoPE and the write of the cache


def test_masked_attention_takes_a_block_for_each_head() -> None:
    config = {"kernel": "torch_flow", "kv_heads": 32, "past_len": 15}
    few, many = (us(one("attention_generation", "TensorRT-LLM 1.3", "H100-SXM", batch=batch, **config)) for batch in (132, 264))
    assert many - few == pytest.approx(32 * fitted_values()["attention.light_us"], rel=0.02)


def test_flash_attention_on_ampere_shares_an_sm() -> None:
    """Blocks of 64 keys; products of one thread block beside the softmax of another. Two rows of SGLang, +23 and +66 % before."""
    for shape, measured, off in (((32, 4096, 96), 66790.0, 0.12), ((128, 128, 48), 401.7, 0.35)):
        batch, queries, heads = shape
        row = one("attention_context", "SGLang 0.5", "A100-SXM", batch=batch, q_len=queries, heads=heads, past_len=0, kernel="flash_attention")
        assert (row.case.rows, row.case.columns) == (128, 64)
        assert us(row) == pytest.approx(measured, rel=off)


def test_tiles_of_released_kernels() -> None:
    assert flash_tile(128, "bf16", 4096) == (128, 128)
    assert flash_tile(128, "bf16", 64) == (64, 128)
    assert flash_tile(64, "bf16", 4096, window=True) == (192, 160)
    assert flash_tile(128, "bf16", 4096, causal=False) == (128, 176)
    assert flash_tile(256, "fp8", 4096) == (128, 128)
    assert [fmha_tile(width, "bf16").columns for width in (64, 128, 256)] == [256, 128, 64]
    assert [fmha_tile(width, "fp8").columns for width in (64, 128, 256)] == [256, 256, 128]


def test_an_absorbed_fp8_projection_pays_for_its_cast() -> None:
    sizes = {"tokens": 4096, "heads": 8, "n": 512, "k": 128, "dtype": "fp8"}
    kernels = ("x", "sglang_sgl_kernel_bmm_fp8", "trtllm_fp8_block_scaling_bmm_out")
    plain, scaled, cast = (us(one("mla_absorb_bmm", "SGLang", "H100-SXM", kernel=kernel, **sizes)) for kernel in kernels)
    gpu, v = load_gpu("h100-sxm"), fitted_values()
    assert scaled - plain == pytest.approx(3 * v["attention.light_us"] + 2 * 4096 * 8 / gpu.boost_MHz)
    assert cast - plain == pytest.approx(float(quantise_us(gpu, v, 4096 * 8 * 128)))


def test_kernels_as_their_benchmarks_run_them() -> None:
    """SGLang's static cast is four kernels of PyTorch, FlashAttention-3 casts a whole FP8 latent, power limits a GEMM in a loop."""
    gpu, v, values = load_gpu("h100-sxm"), fitted_values(), 4096 * 4096
    chain = us(one("quantize_static", "SGLang 0.5.14", "H100-SXM", m=4096, k=4096, kernel="sglang"))
    assert chain == pytest.approx(float(3 * light_us(gpu, v) + hbm_us(gpu, v, 16 * values) + quantise_us(gpu, v, values)))
    latent, plain = (us(one("mla_generation", "SGLang", "H100-SXM", kernel="flash_attention", kv_dtype=stored)) for stored in ("fp8", "bfloat16"))
    cast = float(quantise_us(gpu, v, 64 * 4096 * 576))
    assert cast < latent - plain < cast + 3 * light_us(gpu, v)
    loop = us(one("gemm_dense", "TransformerEngine", "A100-SXM", m=8192, n=8192, k=8192, pass_="forward", dtype="bfloat16"))
    assert 2 * 8192**3 / loop < kept_part(load_gpu("a100-sxm"), v, "bf16", "cublas") * sustained_flops_per_us(load_gpu("a100-sxm"), v, "bf16")
    assert 2 * 8192**3 / loop > 0.9 * KEPT["hopper.bf16"] * sustained_flops_per_us(load_gpu("a100-sxm"), v, "bf16")


def test_a_linear_layer_casts_as_its_engine_does() -> None:
    """Where memory limits the cast, an input that is twice as large costs its bytes; vLLM's FP8 cast costs more."""

    def cast(engine: str, dtype: str) -> float:
        rows = [one("gemm_dense", engine, "B200-SXM", m=m, n=64, k=65536, dtype=dtype, kernel="x").case for m in (4096, 8192)]
        return float(np.diff([float(dense_us(case, load_gpu("b200"), fitted_values())) for case in rows])[0])

    assert cast("SGLang", "fp8") < cast("TensorRT-LLM", "fp8") < cast("vLLM", "fp8")
    assert cast("vLLM", "nvfp4") == pytest.approx(cast("SGLang", "nvfp4"))


@pytest.mark.parametrize("hardware", ["A100-PCIe", "A100-SXM", "B300-SXM", "GB300", "H20"])
def test_gpus_without_packaged_rows_are_predicted(hardware: str) -> None:
    fast, slow = (us(one("attention_generation", "vLLM 0.24", name)) for name in ("GB200", hardware))
    assert 0.5 * fast < slow < 20 * fast


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("attention_context", {"kernel": "vllm_triton_attn"}, "Triton"),
        ("mla_generation", {"kernel": "vllm_flashmla"}, "host's launches"),
        ("rmsnorm", {"pass": "backward"}, "not stated"),
        ("quantize_scale_compute", {}, "difference"),
        ("attention_context", {"heads": None}, "no number 'heads'"),
    ],
)
def test_rows_without_a_prediction_say_why(kind: str, config: dict[str, object], reason: str) -> None:
    text = f"{HEADER}\n{line('x', kind=kind, system='vLLM', hardware='H100-SXM', config=ROW | config, value=50)}\n"
    (missing,) = classify(measurements_from_csv(text, "x")).missing
    assert reason in missing.reason


def test_odd_values_never_end_the_others() -> None:
    for entry in read_operators()[::40]:
        for key in entry.config:
            for odd in (None, "", "x", -1, 0, 1.5, 10**30, True, [], {}):
                rows = classify([replace(entry, config=dict(entry.config) | {key: odd})]).entries
                assert len(rows) == 1
                if isinstance(rows[0], Parsed):
                    ClosedForms([rows[0]]).us(fitted_values())


def test_predictions_are_finite(parsed: tuple[Parsed, ...]) -> None:
    rows = of(parsed, "attention") + of(parsed, "operator")
    values = ClosedForms(rows).values(fitted_values())
    assert np.isfinite(values).all()
    assert (values > 0).all()
