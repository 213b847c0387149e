"""Families beyond the bars: which kernel a row ran, what stays out of the means, and the errors on the shared measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.analysis.allreduce_queries import BY_NCCL, KIB, MIB
from dysharp.analysis.beyond import case_of, judge, split
from dysharp.analysis.families import ASK, BEYOND
from dysharp.analysis.measured import COLUMNS, measurements_from_csv, read_measurements
from dysharp.analysis.queries import Unsupported
from dysharp.analysis.validation import BEYOND_BARS, sort_rows
from dysharp.cli.app import cli
from dysharp.specs.fitted import fitted_values

SHARED = Path(__file__).parents[3] / "shared" / "data" / "measured.csv"
VLLM, TRTLLM = "vLLM custom allreduce (CUDA graph)", "TRTLLM one/two-shot allreduce"
H100, GB200 = "8xH100-SXM (NVLink4 NVSwitch)", "4xGB200 tray (NVLink5, NVL72)"
GEMM = 'g-1,gemm_dense,cuBLAS,B200,"{""dtype"":""bf16"",""m"":1024,""n"":4096,""k"":4096}",latency,43,us,a source'


def line(system: str, hardware: str = H100, *, kind: str = "custom_allreduce", id_: str = "a-1", **config: object) -> str:
    text = json.dumps({"gpus": 8, "dtype": "bf16"} | config).replace('"', '""')
    return f'{id_},{kind},"{system}","{hardware}","{text}",latency,10,us,a source'


def read(*lines: str):
    return measurements_from_csv("\n".join((",".join(COLUMNS), *lines, "")), "m.csv")


@pytest.mark.parametrize(
    ("system", "hardware", "config", "kernel"),
    [
        (VLLM, H100, {"bytes": 128 * KIB}, "vllm one-stage"),
        (VLLM, H100, {"bytes": 256 * KIB}, "torch multimem"),
        (VLLM, H100, {"bytes": 4 * MIB, "gpus": 4}, "vllm two-stage"),
        (VLLM, H100, {"bytes": 64 * MIB, "gpus": 2}, "torch two-shot"),
        (VLLM, H100, {"bytes": 128 * MIB}, None),
        (TRTLLM, H100, {"bytes": 512 * KIB}, "trtllm one-shot"),
        (TRTLLM, H100, {"bytes": MIB}, None),
        (TRTLLM, H100, {"bytes": 2 * MIB}, "trtllm two-shot"),
        (TRTLLM, GB200, {"bytes": 4 * MIB, "gpus": 4}, "trtllm one-shot"),
        (TRTLLM, GB200, {"bytes": 32 * MIB, "gpus": 4}, None),
        ("one-shot multimem.ld_reduce, no barrier", "8xGB200 (NVLink5)", {"bytes": 64, "ctas": 4}, "one-shot"),
        ("two-shot ld_reduce+multimem.st, poison (no barrier)", "8xGB200 (NVLink5)", {"bytes": 64, "ctas": 4}, "two-shot polled"),
        ("custom 2-stage", "SM90 (H100-class)", {"size": "1.5MiB", "gpus": 6}, "vllm two-stage"),
        ("pynccl", "SM90 (H100-class)", {"size": "1.5MiB", "gpus": 6}, None),
    ],
)
def test_the_kernel_of_a_row(system: str, hardware: str, config: dict[str, object], kernel: str | None) -> None:
    (row,) = read(line(system, hardware, **config))
    if kernel is None:
        with pytest.raises(Unsupported, match=BY_NCCL):
            case_of(row)
        return
    query = case_of(row).query
    assert query.words == (kernel,)
    assert query.numbers["bytes"] == config.get("bytes", 1.5 * MIB)
    assert query.numbers["in_flight"] == {"o": 65536, "v": 294912, "t": 65536 if "ctas" in config else 0}[kernel[0]]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bytes": 64, "gpus": 3}, "not said which kernel ran"),
        ({"bytes": 64, "hardware": "8xA100"}, "no packaged GPU"),
        ({"bytes": 64, "hardware": "8xMI300X"}, "no NVIDIA machine of one NVLink domain"),
        ({"size": "1 MB"}, "no size of the vector"),
        ({"size": "nanMiB"}, "no size of the vector"),
        ({"size": "0MiB"}, "no whole number of bytes"),
        ({"size": "64MiB", "gpus": 64, "system": "multimem (torch symm mem)", "hardware": "GB200"}, "more than a million trains"),
        ({}, "no number 'bytes'"),
    ],
)
def test_a_row_without_a_program_says_why(changed, reason) -> None:
    (row,) = read(line(**{"system": VLLM} | changed))
    with pytest.raises(Unsupported, match=reason):
        case_of(row)


HYBRID = {"ep": 8, "hidden": 1024, "local_experts": 4, "topk": 4, "tokens_per_rank": 64, "sms": 4, "dtype": "fp8", "measure": "Kernel only"}


def hybrid(**config: object) -> str:
    text = json.dumps(HYBRID | config).replace('"', '""')
    return f'h-1,ep_dispatch,Hybrid-EP,8xB200,"{text}",bandwidth,100,GB/s,a source'


def test_a_kernel_of_hybrid_ep_is_its_program() -> None:
    case = case_of(*read(hybrid()))
    assert case.ask is not None
    assert (case.family, case.ask.of, case.ask.case.tokens, case.ask.case.fp8) == ("hybrid-ep", "hybrid-ep", 64, True)
    # Rates count what arrives: 64 tokens to 8 (1 - C(28, 4) / C(32, 4)) GPUs, 1024 values and 8 scales each.
    copies = 8 * (1 - (28 * 27 * 26 * 25) / (32 * 31 * 30 * 29))
    assert case.in_unit(10.0) == pytest.approx(64 * copies * (1024 + 4 * 8) / 10.0 / 1e3)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"measure": "Torch API"}, "times of torch calls"),
        ({"ep": 24}, "more than 16 GPUs"),
        ({"dtype": "int3"}, "int3"),
        ({"sms": 3.5}, "no whole number of SMs"),
    ],
)
def test_a_row_of_hybrid_ep_without_a_program_says_why(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        case_of(*read(hybrid(**changed)))


def test_they_are_in_no_mean(tmp_path) -> None:
    assert not set(BEYOND) & set(ASK)
    path = tmp_path / "m.csv"
    path.write_text("\n".join((",".join(COLUMNS), GEMM, line(VLLM, bytes=64), line(VLLM, id_="a-2", bytes=128 * MIB), "")))
    rows = read_measurements(path)
    found = sort_rows(rows)
    assert [case.family for case in found.cases] == ["dense-gemm"]
    assert {m.reason for m in found.missing} == {BEYOND_BARS}
    assert not split(found)[0].missing
    shown = CliRunner().invoke(cli, ["validate", "--data", str(path), "--json", "--page", str(tmp_path / "a.md"), "-j", "1"])
    fields = json.loads(shown.stdout)
    assert [row["family"] for row in fields["families"]] == ["dense-gemm"]
    assert fields["overall"]["n_rows"] == 1
    assert [(row["family"], row["by"], row["system"], row["n"], row["n_rows"]) for row in fields["beyond"]] == [
        ("custom-allreduce", "program", "all", 1, 2), ("custom-allreduce", "program", VLLM, 1, 2),
    ]
    assert fields["beyond"][0]["unpredicted"] == f"1 {BY_NCCL}"
    assert "## Beyond the bars" in (tmp_path / "a.md").read_text()
    path.write_text("\n".join((",".join(COLUMNS), line(VLLM, bytes=64), "")))
    assert "custom-allreduce" in CliRunner().invoke(cli, ["validate", "--data", str(path), "-j", "1"]).stdout


@pytest.mark.slow
def test_the_errors_on_the_shared_measurements() -> None:
    """Medians as found (percent) with nothing fitted to these rows; a change of any by more than a tenth wants a look."""
    if not SHARED.exists():
        pytest.skip("the shared measurements are not beside this checkout")
    found = {(row["family"], row["system"], row["hardware"][:7]): row for row in judge(read_measurements(SHARED), fitted_values()) if row["n"]}
    medians = {key: row["median_ape"] for key, row in found.items()}
    assert medians == pytest.approx(MEDIANS, rel=0.1)
    counts = {key[0]: (row["n"], row["n_rows"]) for key, row in found.items() if key[1] == "all"}
    assert counts == {"inswitch-allreduce": (138, 189), "custom-allreduce": (137, 184), "hybrid-ep": (15, 120)}


IN, OWN, HYBRID_EP = BEYOND
MEDIANS = {
    (IN, "all", ""): 13.2,
    (IN, "custom 1-stage", "SM90 (H"): 7.8,
    (IN, "custom 2-stage", "SM90 (H"): 19.2,
    (IN, "multimem (torch symm mem)", "8x SM90"): 15.6,
    (IN, "multimem (torch symm mem)", "SM90 (H"): 5.3,
    (IN, "one-shot multimem.ld_reduce, no barrier", "4xGB200"): 11.0,
    (IN, "one-shot multimem.ld_reduce, no barrier", "8xGB200"): 10.6,
    (IN, "two-shot P2P (torch symm mem)", "8x SM90"): 5.9,
    (IN, "two-shot P2P (torch symm mem)", "SM90 (H"): 14.3,
    (IN, "two-shot ld_reduce+multimem.st, LSA exit barrier", "4xGB200"): 5.8,
    (IN, "two-shot ld_reduce+multimem.st, LSA exit barrier", "8xGB200"): 20.1,
    (IN, "two-shot ld_reduce+multimem.st, poison (no barrier)", "4xGB200"): 25.5,
    (IN, "two-shot ld_reduce+multimem.st, poison (no barrier)", "8xGB200"): 25.9,
    (OWN, "all", ""): 10.1,
    (OWN, "TRTLLM one/two-shot allreduce", "4xGB200"): 29.8,
    (OWN, "TRTLLM one/two-shot allreduce", "8xH100-"): 7.5,
    (OWN, "vLLM custom allreduce (CUDA graph)", "8xH100-"): 6.6,
    (HYBRID_EP, "all", ""): 4.7,
    (HYBRID_EP, "Hybrid-EP", "GB200 N"): 4.0,
    (HYBRID_EP, "HybridEP", "8xB200"): 7.5,
}
