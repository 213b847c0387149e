"""Figure 27: prefill and 512 decoded tokens, against arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dysharp.figures import load_figure
from dysharp.figures.metric import Rows, Seen, all_metrics
from dysharp.figures.metrics import whole_steps
from dysharp.runs.point import Point
from dysharp.specs.choices import choices_overridden

BASE = Point("dysharp", "L-8", "paper-gh200-nvl32", "powerlaw:1.5")


def row(time: float) -> dict[str, Any]:
    phase = {"start": 0.0, "end": time, "busy": time}
    return {"time_us": time, "exposed_comm_us": 0.0, "phases_us": {"dispatch": phase, "combine": phase}}


def rows(prefill: float, decode: float, system: str = "dysharp") -> Rows:
    base = replace(BASE, system=system)
    return {base: row(prefill), replace(base, tokens=8): row(decode), replace(base, tokens=32): row(2 * decode)}


def value(metric: str, at: Point, found: Rows) -> float | None:
    return all_metrics()[metric].value(Seen(at, found, "deepep"))


def test_decode_reads_all_keys_and_values_and_the_projections() -> None:
    """L-8, 8 requests of 8448 tokens: 2 x 7168 B a token of keys and values, four projections of 7168 x 7168 B (FP8), at 4.8 TB/s."""
    found = whole_steps._decode_us(Seen(BASE, rows(1, 1)), 8, 8448)
    assert found == pytest.approx((8 * 8448 * 2 * 7168 + 4 * 7168**2) / 4.8e6, rel=0.01)


def test_a_batch_is_prefilled_once_and_decodes_512_times() -> None:
    here = Seen(BASE, rows(3000.0, 100.0))
    beside = whole_steps._decode_us(here, 8, 8192 + 256)
    found, more = whole_steps._generation_us(here), whole_steps._generation_us(Seen(BASE, rows(4000.0, 100.0)))
    assert found
    assert more
    assert more - found == pytest.approx(8 * 1000.0)
    assert found > 8 * 3000 + 512 * (100 + beside)
    with choices_overridden({"paper_step.decode_batch": 32}):
        assert (whole_steps._generation_us(here) or 0) > 32 * 3000 + 512 * 200


def test_a_speedup_lies_between_those_of_prefill_and_decode() -> None:
    both = rows(3000.0, 100.0) | rows(6000.0, 110.0, "deepep")
    found = value("generation_speedup", BASE, both)
    assert found
    assert 1.0 < found < 2.0
    assert value("decode_layer_speedup", replace(BASE, tokens=8), both) == pytest.approx(1.1)
    assert value("decode_layer_speedup", BASE, both) is None
    assert value("generation_speedup", replace(BASE, tokens=8), both) is None
    assert value("generation_speedup", BASE, {BASE: row(3000.0), replace(BASE, system="deepep"): row(1.0)}) is None


def test_the_figure_has_both_batches_of_every_system() -> None:
    figure = load_figure("fig27")
    assert {p.tokens for p in figure.points} == {None, 8, 32}
    assert {c.over for c in figure.checks if c.bounded} == {"deepep", "nvls", "fastermoe", "tutel", "ccfuser", "comet"}
