"""Families beyond the bars: they stay out of the means, and the errors on the packaged measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli
from dysharp.measured.beyond import judge
from dysharp.measured.families.allreduce import BY_NCCL, MIB
from dysharp.measured.family import classify
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import GEMM, VLLM, allreduce_line, line, write

IN, MULTIMEM, OWN, HYBRID_EP, MORI = "inswitch-allreduce", "multimem", "custom-allreduce", "hybrid-ep", "mori-intranode"


def test_they_are_in_no_mean(tmp_path: Path) -> None:
    gemm = line("g-1", hardware="B200", config=GEMM)
    path = write(tmp_path, gemm, allreduce_line(VLLM, bytes=64), allreduce_line(VLLM, id_="a-2", bytes=128 * MIB))
    page = tmp_path / "a.md"
    shown = CliRunner().invoke(cli, ["validate", "--data", str(path), "--json", "--page", str(page), "-j", "1"])
    fields = json.loads(shown.stdout)
    assert [row["family"] for row in fields["families"]] == ["dense-gemm"]
    assert (fields["overall"]["n_rows"], fields["unsupported"]) == (1, [])
    assert [(row["family"], row["by"], row["system"], row["n"], row["n_rows"]) for row in fields["beyond"]] == [
        ("custom-allreduce", "program", "all", 1, 2),
        ("custom-allreduce", "program", VLLM, 1, 2),
    ]
    assert fields["beyond"][0]["unpredicted"] == f"1 {BY_NCCL}"
    assert "## Beyond the bars" in page.read_text()
    write(tmp_path, allreduce_line(VLLM, bytes=64))
    assert "custom-allreduce" in CliRunner().invoke(cli, ["validate", "--data", str(path), "-j", "1"]).stdout


@pytest.mark.long
def test_the_errors_on_the_packaged_measurements(packaged_measurements) -> None:
    """Medians as found (percent) with nothing fitted to these measurements; a change by more than a tenth wants a look."""
    one_domain = classify(packaged_measurements)._keep(lambda family: family is not None and not family.between)
    entries = judge(one_domain, fitted_values())
    of_mori = [row for row in entries if row["family"] == MORI]
    assert of_mori[0]["n"] == 254
    assert of_mori[0]["median_ape"] == pytest.approx(6.7, rel=0.1)
    entries = [row for row in entries if row["family"] != MORI]
    known = {(row["family"], row["system"], row["hardware"][:7]): row for row in entries if row["n"]}
    assert {key: row["median_ape"] for key, row in known.items()} == pytest.approx(MEDIANS, rel=0.1)
    counts = {key[0]: (row["n"], row["n_rows"]) for key, row in known.items() if key[1] == "all"}
    assert counts == {"inswitch-allreduce": (138, 189), "custom-allreduce": (137, 184), "hybrid-ep": (33, 66), "multimem": (60, 60)}


MEDIANS = {
    (IN, "all", ""): 10.6,
    (IN, "custom 1-stage", "SM90 (H"): 1.07,
    (IN, "custom 2-stage", "SM90 (H"): 24.2,
    (IN, "multimem (torch symm mem)", "8x SM90"): 14.1,
    (IN, "multimem (torch symm mem)", "SM90 (H"): 3.45,
    (IN, "one-shot multimem.ld_reduce, no barrier", "4xGB200"): 26.1,
    (IN, "one-shot multimem.ld_reduce, no barrier", "8xGB200"): 26.6,
    (IN, "two-shot P2P (torch symm mem)", "8x SM90"): 3.02,
    (IN, "two-shot P2P (torch symm mem)", "SM90 (H"): 16.0,
    (IN, "two-shot ld_reduce+multimem.st, LSA exit barrier", "4xGB200"): 1.43,
    (IN, "two-shot ld_reduce+multimem.st, LSA exit barrier", "8xGB200"): 2.25,
    (IN, "two-shot ld_reduce+multimem.st, poison (no barrier)", "4xGB200"): 13.9,
    (IN, "two-shot ld_reduce+multimem.st, poison (no barrier)", "8xGB200"): 14.2,
    (MULTIMEM, "all", ""): 6.15,
    (MULTIMEM, "multimem (TokenWeave)", "8xH100 "): 6.15,
    (OWN, "all", ""): 11.2,
    (OWN, "TRTLLM one/two-shot allreduce", "4xGB200"): 7.97,
    (OWN, "TRTLLM one/two-shot allreduce", "8xH100-"): 11.0,
    (OWN, "vLLM custom allreduce (CUDA graph)", "8xH100-"): 14.1,
    (HYBRID_EP, "all", ""): 5.89,
    (HYBRID_EP, "Hybrid-EP", "GB200 N"): 5.98,
    (HYBRID_EP, "HybridEP", "8xB200"): 4.16,
}
