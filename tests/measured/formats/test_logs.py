"""Logs as tools print them: rows say what a log states, the rest is asked for, wrong numbers are refused, and a broken log is one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.cli.entry import main
from dysharp.measured.formats import FORMATS, Given, megatron_log, rows_text
from dysharp.measured.measurements import Measurement, Unsupported, measurements_from_csv, out_of_scope
from dysharp.measured.serving.setting import ServingRow
from dysharp.measured.training.setting import TrainingRow

SAMPLES = Path(__file__).with_name("samples")
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "formats"
SERVED = {"hardware": "H200", "engine": "vllm", "mode": "agg", "tp": "8"}
DEEPEP = {"hardware": "H800", "experts": "256"}


def rows(name: str, **said: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(rows_text(Given(str(SAMPLES / name), said)))))


def measured(name: str, **said: str) -> list[Measurement]:
    return measurements_from_csv(rows_text(Given(str(SAMPLES / name), said)), name)


def test_nccl_tests() -> None:
    gather, more, wrong = measured("nccl.log")
    assert (gather.kind, gather.hardware, gather.value, gather.unit) == ("nccl_all_gather", "2xNVIDIA H100 80GB HBM3", 250.0, "us")
    assert gather.config == {"bytes": 33554432, "gpus": 2, "nodes": 1, "regime": "chained"}
    assert (more.value, out_of_scope(more)) == (480.0, "")
    assert (wrong.kind, wrong.config["nodes"], out_of_scope(wrong)) == ("nccl_alltoall", 2, "nccl-tests found wrong values")


def test_deepep_tests() -> None:
    fp8, bf16, combine = measured("deepep.log", **DEEPEP)
    assert (fp8.value, fp8.unit, fp8.config["dtype"], fp8.config["nodes"], fp8.config["ep"]) == (1400.0, "us", "fp8", 2, 16)
    assert (bf16.value, bf16.unit, bf16.config["dtype"]) == (43.5, "GB/s", "bf16")
    assert (combine.kind, combine.value, combine.config["sms"], combine.config["measure"]) == ("ep_combine", 2700.0, 24, "kernel")
    said = DEEPEP | {"tokens_per_rank": "128", "hidden": "7168", "topk": "8"}
    low = measured("deepep_ll.log", **said)
    assert [(m.kind, m.system, m.value, m.config["ep"]) for m in low] == [
        ("ep_dispatch", "DeepEP-LL", 71.0, 2), ("ep_combine", "DeepEP-LL", 93.0, 2),
    ]  # fmt: skip


def test_training() -> None:
    (row,) = TrainingRow.read(Given(str(SAMPLES / "megatron.log"), {"model": "mixtral-8x7b", "hardware": "H100"}))
    assert (row.numbers["step_s"], row.numbers["tflops_gpu"], row.text("dispatcher"), row.text("precision")) == (3.05, 440.9, "alltoall", "bf16")
    assert {name: row.degrees[name] for name in ("gpus", "gbs", "mbs", "tp", "ep", "dp", "layers")} == {
        "gpus": 8, "gbs": 256, "mbs": 2, "tp": 1, "ep": 8, "dp": 8, "layers": 32,
    }  # fmt: skip
    text = (SAMPLES / "megatron.log").read_text()
    for said, found in (("flex", "deepep"), ("flex\n:   moe_flex_dispatcher_backend ..... hybridep", "hybridep"), ("allgather", "allgather")):
        log = megatron_log.read(text.replace("type .................... alltoall", f"type .................... {said}"), {})
        assert log.rows[0]["dispatcher"] == found
    (row,) = TrainingRow.read(SAMPLES / "torchtitan.log")
    assert row.numbers["step_s"] == pytest.approx(128 * 4096 / (8 * 11000))
    assert (row.model, row.text("hardware"), row.text("precision"), row.degrees["fsdp"]) == ("qwen3-14b", "NVIDIA B200", "bf16", 8)


def test_serving() -> None:
    good, seconds, drafts, failed, silent = ServingRow.read(Given(str(SAMPLES / "bench.jsonl"), SERVED))
    assert (good.model, good.numbers["tpot_ms"], good.degrees["isl"], good.degrees["osl"]) == ("qwen3-30b", 9.25, 1024, 128)
    assert (seconds.numbers["tpot_ms"], seconds.numbers["ttft_ms"]) == (pytest.approx(11.5), pytest.approx(80.5))
    assert [row.fault.partition(": ")[2] for row in (drafts, failed, silent)] == [
        "a chunk holds several tokens, as with drafts, and spec_decode is not given", "70 of 80 requests completed", "no time per output token",
    ]  # fmt: skip
    (text,) = ServingRow.read(Given(str(SAMPLES / "bench.log"), SERVED))
    assert (text.model, text.numbers["tpot_ms"], text.degrees["concurrency"]) == ("qwen3-30b", 13.64, 64)
    (aiperf,) = ServingRow.read(Given(str(SAMPLES / "aiperf.json"), SERVED))
    assert (aiperf.model, aiperf.numbers["tpot_ms"], aiperf.degrees["concurrency"], aiperf.degrees["isl"]) == ("qwen3-30b", 11.4, 4, 120)


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("megatron.log", {}, "found a log of Megatron-LM that does not say model, hardware, expected --set model=VALUE"),
        ("deepep.log", {"hardware": "H800"}, "found output of DeepEP's tests that does not say experts, expected --set experts=VALUE"),
        ("bench.log", {}, "does not say hardware, engine, mode, tp, expected --set hardware=VALUE"),
        ("nccl.log", {"model": "x"}, "--set: found 'model' beside output of nccl-tests"),
    ],
)
def test_what_a_log_does_not_say_is_asked_for(name: str, said: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rows(name, **said)
    assert expected in str(raised.value)


def test_validate_reads_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    said = [part for name, value in SERVED.items() for part in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as end:
        main(["validate", "--data", str(SAMPLES / "bench.log"), *said])
    assert end.value.code == 0
    assert "serving-1" in capsys.readouterr().out


def read_any(path: Path, said: dict[str, str]) -> None:
    text = rows_text(Given(str(path), said))
    kind = next((one for one in (TrainingRow, ServingRow) if one.columns.fit(text)), None)
    if kind is None:
        for m in measurements_from_csv(text, str(path)):
            out_of_scope(m)
        return
    for row in kind.from_csv(text, str(path)):
        try:
            assert row.model
        except Unsupported as reason:
            assert str(reason)


def test_a_length_that_no_run_has_is_left_out(tmp_path: Path) -> None:
    one = json.loads((SAMPLES / "bench.jsonl").read_text().splitlines()[0]) | {"completed": 1e-320, "total_input_tokens": 1e9}
    (tmp_path / "a.json").write_text(json.dumps(one))
    assert "isl" in rows_text(Given(str(tmp_path / "a.json"), SERVED))


def test_a_run_of_inferencex_names_its_machine_and_engine(tmp_path: Path) -> None:
    one = json.loads((SAMPLES / "bench.jsonl").read_text().splitlines()[0]) | {"hw": "cluster:b200", "framework": "sglang", "precision": "fp8"}
    (tmp_path / "a.json").write_text(json.dumps(one))
    (row,) = csv.DictReader(rows_text(Given(str(tmp_path / "a.json"), {"mode": "agg", "tp": "8"})).splitlines())
    assert (row["hardware"], row["engine"], row["precision"]) == ("b200", "sglang", "fp8")


def test_five_hundred_broken_logs_are_one_line_each(tmp_path: Path) -> None:
    draw, read = random.Random(55), 0
    samples = sorted(SAMPLES.iterdir())
    for n in range(500):
        text, path = samples[n % len(samples)].read_text(), tmp_path / "broken.log"
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(text))
            piece = draw.choice(["", "\n", "\x00", "9" * 40, "-1", "nan", "N/A", '"', "{", ",", "1e400", text[at : at + 60], "\u0664", "."])
            text = text[:at] + piece + text[at + draw.choice([0, 1, 5, 200]) :] or "x"
        path.write_text(text)
        said = draw.choice([{}, SERVED, DEEPEP, {"model": "mixtral-8x7b", "hardware": "H100"}])
        try:
            read_any(path, said)
            read += 1
        except ConfigError as error:
            assert "\n" not in str(error), (n, str(error))
    assert 0 < read < 500


def found(*names: str) -> list[Path]:
    return [path for name in names for path in sorted(SHARED.glob(name))]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the files lie beside the checkout only")
def test_public_logs(tmp_path: Path) -> None:
    """As many rows as the files have results, and no numbers that they mark as wrong."""
    read = {}
    for path in found("communication/**/nccl*.log", "communication/nccl*/*", "communication/deepep*", "training/**/*.gz", "benchmarks/**/*.json*"):
        plain = tmp_path / path.name.removesuffix(".gz")
        plain.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        kind = next((one.__name__.rpartition(".")[2] for one in FORMATS if one.fits(plain.read_text(errors="replace"))), "")
        said = {"nccl_tests": {"op": "alltoall"}, "deepep_test": DEEPEP, "serving_json": SERVED, "": {}}.get(
            kind, {"model": "mixtral-8x7b", "hardware": "H100"}
        )
        try:
            read[str(path.relative_to(SHARED))] = rows_text(Given(str(plain), said)) if kind else ""
        except ConfigError as error:
            assert "\n" not in str(error)
    assert "nccl-tests found wrong values" in read["communication/nccl_alltoall_efa_mpirun.log"]
    assert read["communication/nccl_cluster/N10_G8.log"].count("\n") == 51
    assert "1379.0" in read["communication/deepep_internode_2nodes.log.gz"]
    assert ",3.06" in read["training/primus_mixtral_8x7b_64gpu.log.gz"]
    assert ",,1.82" in read["training/torchtitan_qwen3_14b_run399.log.gz"]
    assert "19.96" in read["benchmarks/vllm_bench_minimaxm2.5_dep8_conc8.json"]
    assert "several tokens" in read["benchmarks/vllm_bench_kimik2.5_mtp_conc64.json"]
