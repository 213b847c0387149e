"""Calls of libraries: the regimes of a call, its errors by regime, and names that do not fit a time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli
from dysharp.measured.calls import bars, call_errors, doubts, in_pool
from dysharp.measured.families.library_calls import CallCase, device_us, program_us
from dysharp.measured.family import Parsed, classify
from dysharp.measured.measurements import read_calls
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import line, write

CONSTANTS = fitted_values()
CASE = CallCase(
    gpu="b200", verb="roundtrip", gpus=8, hidden=7168, experts=384, topk=6, tokens=8, library="deepep-v2", mode="normal", regime="drained", nodes=1,
    fp8=False, capacity=8,
)  # fmt: skip
HOST = 3.8 / 4.0 * CONSTANTS["lib.host_x86_us"]
"""A host step of a DGX B200, by the clock of its Xeon."""


def test_a_drained_call_waits_for_all_host_steps_or_for_the_first_ones_and_the_device() -> None:
    """18 host steps at few tokens; 4 host steps and the device at many tokens; the device alone in a graph."""
    host, few = HOST, CONSTANTS["lib.few_sms"]
    assert program_us(CASE, CONSTANTS) == pytest.approx(18 * host)
    many = replace(CASE, tokens=512)
    device = few * sum(device_us(many, CONSTANTS))
    assert device > 18 * host
    assert program_us(many, CONSTANTS) == pytest.approx(4 * host + device)
    assert program_us(replace(many, regime="chained"), CONSTANTS) == program_us(replace(many, regime="graph"), CONSTANTS) == pytest.approx(device)
    start, (_, back) = CONSTANTS["gpu.kernel_us"], device_us(many, CONSTANTS)
    assert program_us(replace(many, regime="kernel"), CONSTANTS) == pytest.approx(device - 2 * start)
    two = replace(many, gpus=2, regime="kernel", verb="combine")
    assert program_us(two, CONSTANTS) == pytest.approx(device_us(two, CONSTANTS)[1] - start)  # one way for all rows
    assert program_us(replace(two, gpus=8), CONSTANTS) == pytest.approx(few * back - start)
    assert program_us(replace(CASE, regime="chained"), CONSTANTS) == pytest.approx(18 * host)
    assert program_us(replace(CASE, fp8=True), CONSTANTS) == pytest.approx(30 * host)


def test_a_combine_alone_begins_behind_a_dispatch() -> None:
    """Its time begins when the stream has done Dispatch: with the time of events around a call, or the host is behind; a graph has neither."""
    host, few = HOST, CONSTANTS["lib.few_sms"]
    alone = replace(CASE, verb="combine", tokens=512)
    back = few * device_us(alone, CONSTANTS)[1]
    assert program_us(alone, CONSTANTS) == pytest.approx(CONSTANTS["deepep.call_us"] + back)  # Dispatch takes longer than the host
    late = replace(CASE, verb="combine")
    back_late = few * device_us(late, CONSTANTS)[1]
    assert program_us(late, CONSTANTS) == pytest.approx(max(6 * host, 4 * host + back_late))
    assert program_us(replace(alone, regime="graph"), CONSTANTS) == pytest.approx(back)
    assert program_us(replace(late, regime="chained"), CONSTANTS) == pytest.approx(max(6 * host, back_late))


def test_messages_by_proxies_take_steps_of_both_hosts() -> None:
    """UCCL-EP between nodes: ten messages of a round trip, two host steps each; none inside a domain or in other libraries."""
    far = replace(CASE, gpus=16, nodes=2, library="uccl-ep")
    device = device_us(far, CONSTANTS)
    host = HOST
    assert program_us(far, CONSTANTS) == pytest.approx((16 + 20) * host + sum(device))
    assert program_us(replace(far, verb="dispatch"), CONSTANTS) == pytest.approx((16 + 12) * host + device[0])


@pytest.mark.slow
def test_gpus_of_virtual_machines_share_one_nic() -> None:
    """Many tokens take eight times as long between nodes."""
    far = replace(CASE, gpus=16, nodes=2, tokens=8192, regime="graph")
    apart, shared = (sum(device_us(replace(far, one_nic=one), fitted_values())) for one in (False, True))
    assert 6 < shared / apart < 9


def test_rows_name_their_library_and_regime(tmp_path: Path) -> None:
    """A call that takes the time of another library is doubted; a wrong word is refused in one line."""
    config = {"ep": 8, "tokens_per_rank": 64, "hidden": 7168, "experts": 384, "topk": 6, "dispatch_dtype": "bf16", "library": "uccl-ep", "mode": "LL"}
    other = program_us(replace(CASE, tokens=64, capacity=64, library="uccl-ep"), CONSTANTS)
    rows = [
        line(f"r-{i}", kind="ep_roundtrip", system="mine", hardware="8xB200", config=config | {"regime": regime}, value=value)
        for i, (regime, value) in enumerate((("fresh", 105.0), ("drained", other), ("warm", 99.0)))
    ]
    shown = CliRunner().invoke(cli, ["validate", "--data", str(write(tmp_path, *rows)), "-j", "1"])
    words = " ".join(shown.stdout.split())
    assert "2 of 3 rows are predicted" in words
    assert "1 do not fit the library that they name." in words
    assert "regime 'warm'," in words
    asked = CliRunner().invoke(cli, ["validate", "--data", str(write(tmp_path, *rows)), "-j", "1", "--json"])
    assert [row["doubt"].rpartition(",")[0] for row in json.loads(asked.stdout)["rows"]] == ["", "uccl-ep normal", ""]


def test_every_packaged_call_has_a_case() -> None:
    found = classify(read_calls())
    assert (len(found.parsed), found.missing) == (1398, ())
    assert sum(in_pool(entry.measurement) for entry in found.parsed) > 0


def _predicted(*gpus: str) -> tuple[tuple[Parsed, ...], np.ndarray]:
    wanted = [m for m in read_calls() if any(gpu in m.hardware for gpu in gpus)]
    found, values = predict(classify(wanted), CONSTANTS, 2)
    return found.parsed, values


@pytest.mark.long
def test_the_bars_hold_on_the_packaged_rows() -> None:
    parsed, values = _predicted("")
    assert [bar for bar in bars(parsed, values) if not bar["holds"]] == []
    assert {row["what"] for row in call_errors(parsed, values)} >= {"dispatch", "combine", "pool of slow networks", "marginal time of round trips"}


@pytest.mark.slow
def test_a_lie_about_the_library_is_noticed() -> None:
    """A quarter of the cells, drawn with a seed: other names are doubted in 70 % of the cells that differ by more than 25 %, true
    names in 5 % at most."""
    parsed, values = _predicted("8xH100", "8xB200")
    cells: dict[CallCase, list[tuple[CallCase, float, float]]] = {}
    for entry, value in zip(parsed, values.tolist(), strict=True):
        case = entry.case
        if isinstance(case, CallCase) and not in_pool(entry.measurement) and entry.measurement.value and case.gpus == 8:
            cell = replace(case, library="", mode="")
            cells.setdefault(cell, []).append((case, entry.measurement.value, value))
    draw = np.random.default_rng(31)
    chosen = [cell for cell in cells.values() if len(cell) > 1]
    chosen = [chosen[i] for i in draw.choice(len(chosen), len(chosen) // 4, replace=False)]
    true = [doubts(case, m, p, CONSTANTS) is not None for cell in chosen for case, m, p in cell]
    lies = [
        doubts(named, m, p, CONSTANTS) is not None
        for cell in chosen
        for (named, own, p), (_, m, _) in permutations(cell, 2)
        if max(own, m) > 1.25 * min(own, m)
    ]
    assert len(lies) > 30
    assert sum(true) <= 0.05 * len(true)
    assert sum(lies) >= 0.7 * len(lies)
