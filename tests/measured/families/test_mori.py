"""MoRI's rows: what a case reads, which rows have none, and two answers to one case."""

from __future__ import annotations

import pytest

from dysharp.measured.family import classify, get_family
from dysharp.measured.measurements import Measurement, read_measurements
from dysharp.measured.predictions import ClosedForms, errors_of, measured_values
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu

ROWS = [m for m in read_measurements() if m.system.startswith("MoRI")]


def row(name: str = "MoRI-EP IntraNode", gpu: str = "8xMI308X (xGMI)", kind: str = "ep_combine", unit: str = "us", **config: object) -> Measurement:
    given = {"dtype": "bf16", "ep": 8, "experts": 256, "hidden": 7168, "nodes": 1, "topk": 8, "tokens_per_rank": 64} | config
    return Measurement(
        "m-1", kind, name, gpu, {k: v for k, v in given.items() if v is not None}, "latency" if unit == "us" else "bandwidth", 40.0, unit, "mine"
    )


def only(m: Measurement):
    (parsed,) = classify([m]).parsed
    return parsed


def test_rows_of_the_packaged_table():
    classified = classify(ROWS)
    by_family = [entry.family.name for entry in classified.parsed]
    assert (by_family.count("mori-intranode"), by_family.count("mori-internode")) == (258, 60)
    assert {entry.family.name for entry in classified.missing} == {"mori-intranode", "mori-internode"}


@pytest.mark.parametrize(
    ("config", "sent", "zero_copy", "moved"),
    [
        ({}, "rows", True, 0.0),
        ({"quant_type": "fp8_direct_cast", "zero_copy": True}, "rows", True, 0.0),  # the kernel does not cast there
        ({"zero_copy": False}, "rows", False, 4 * 7168),
        ({"quant_type": "fp8_direct_cast", "zero_copy": False}, "fp8-plain", False, 3 * 7168),
    ],
)
def test_what_combine_sends_and_copies(config, sent, zero_copy, moved):
    case = only(row(**config)).case
    assert (case.sent, case.zero_copy, case.moved_bytes) == (sent, zero_copy, moved)


def test_experts_from_the_printed_copies():
    assert only(row(topk=6, experts=None, recv_copies_per_token=4.44)).case.experts == 256
    (missing,) = classify([row(topk=6, experts=None, recv_copies_per_token=3.0)]).missing
    assert missing.reason == "number of experts unknown"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "MoRI-EP v2 (FlyDSL/cco)"}, "MoRI version 2: not simulated"),
        ({"name": "MoRI-EP AsyncLL", "gpu": "2x8xMI308X (xGMI)", "nodes": 2, "ep": 16}, "MoRI AsyncLL: not simulated"),
        ({"name": "MoRI-EP p2p write (2025-12)"}, "a Combine that writes: not simulated"),
        ({"ep": 16}, "no packaged cluster of 16 mi308x"),
    ],
)
def test_rows_without_a_prediction(changes, reason):
    (missing,) = classify([row(**changes)]).missing
    assert missing.reason == reason


def test_a_rate_counts_the_rows_of_the_own_gpu():
    parsed = only(row(unit="GB/s"))
    assert parsed.in_unit(100.0) == pytest.approx(64 * 5.295 * 14336 / 1e3 / 100, rel=1e-3)


@pytest.mark.parametrize("kind", ["ep_dispatch", "ep_combine"])
@pytest.mark.parametrize("ep", [2, 4, 8])
def test_program_and_closed_form_agree(kind, ep):
    case = only(row(kind=kind, ep=ep, tokens_per_rank=2048)).case
    family = get_family("mori-intranode")
    closed = float(family.closed_us(case, load_gpu(case.gpu), fitted_values()))
    assert family.program_us(case, fitted_values()) == pytest.approx(closed, rel=0.06)  # the busiest link has more than the mean


def test_errors_of_the_closed_form_stay_in_what_the_page_says():
    parsed = [entry for entry in classify(ROWS).parsed if entry.family.name == "mori-intranode"]
    errors = errors_of(ClosedForms(parsed).values(fitted_values()), measured_values(parsed))
    assert errors.median_ape < 8
    assert errors.p90_ape < 18


def test_two_nodes_are_at_most_three_times_faster_than_measured():
    """No row names its NIC; docs/design/0017 says by how much."""
    parsed = only(row("MoRI-EP InterNodeV1LL", "2x8xMI308X (xGMI) + RDMA (NIC not named in the file)", nodes=2, ep=16, zero_copy=False))
    assert parsed.family.between == "beyond"
    assert 158 / 3 < parsed.family.program_us(parsed.case, fitted_values()) < 158 * 1.25
