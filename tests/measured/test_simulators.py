"""Errors of the papers' simulators beside ours."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.beyond import beside_simulators
from dysharp.measured.family import classify
from tests.measured.csv_lines import line, read


def all_to_all(row: str, n_bytes: int) -> str:
    return line(row, kind="nccl_alltoall", system="NCCL", hardware="8xH100", config={"bytes": n_bytes, "gpus": 8})


def test_each_claim_takes_measurements_of_its_kind_alone() -> None:
    """GEMMs of an H100, not of a B200; all-to-all up to 256 MiB, not all-gather."""
    rows = [read(text)[0] for text in (line("h"), line("b", hardware="B200"), all_to_all("in", 256 << 20), all_to_all("out", 512 << 20))]
    parsed = classify(rows).parsed
    assert len(parsed) == len(rows)
    measured = np.array([1.0, 1.0, 1.0, 1.0])
    gemm, exchange = beside_simulators(parsed, measured * [1.5, 9.0, 0.9, 9.0], measured)
    assert (gemm["paper"], gemm["published_mape"], gemm["n"], gemm["mape"]) == ("DySHARP", 6.0, 1, pytest.approx(50.0))
    assert (exchange["paper"], exchange["published_mape"], exchange["n"], exchange["mape"]) == ("MoE-Hub", 4.36, 1, pytest.approx(10.0))
