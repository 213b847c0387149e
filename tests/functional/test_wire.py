"""Formats on the wire: bytes of the table in docs/papers' source, values by hand, and errors that a format may have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import dysharp
from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.functional.faults import MACHINE
from dysharp.functional.numbers import number
from dysharp.functional.wire import E2M1, from_mxfp8, rounded, through, to_mxfp8
from dysharp.isa.framing import AS_IS, Framing, pull_train
from dysharp.program import builder
from dysharp.specs import load_model
from dysharp.systems.building.base import DYMULTIMEM
from dysharp.systems.building.formats import ROW_BYTES, packet_in
from dysharp.testing.conformance import conformance

ROWS = np.random.default_rng(7).standard_normal((40, 300))


def test_bytes_of_a_row_of_7168() -> None:
    wide = {word: nbytes(load_model("deepseek-v3")) for word, nbytes in ROW_BYTES.items()}
    assert {k: wide[k] for k in ("fp8", "fp8-ue8m0", "fp8-plain", "nvfp4", "int8")} == {
        "fp8": 7392, "fp8-ue8m0": 7224, "fp8-plain": 7168, "nvfp4": 4032, "int8": 7172,
    }  # fmt: skip


def test_e2m1_is_rounded_to_nearest_even() -> None:
    given = np.linspace(-7, 7, 2801)
    wanted = given.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) if hasattr(ml_dtypes, "float4_e2m1fn") else None
    found = through("fp4-plain", given[None])[0]
    assert set(np.abs(found)) == set(E2M1)
    assert wanted is None or (found == wanted).all()


@pytest.mark.parametrize(
    ("word", "least", "most"), [("fp8", 0.02, 0.03), ("fp8-ue8m0", 0.02, 0.03), ("mxfp8", 0.02, 0.04), ("nvfp4", 0.07, 0.11), ("int8", 0.004, 0.01)]
)
def test_error_of_rows_and_of_zeros(word: str, least: float, most: float) -> None:
    error = np.sqrt(np.mean((through(word, ROWS) - ROWS) ** 2) / np.mean(ROWS**2))
    assert least < error < most
    assert not through(word, np.zeros((2, 300))).any()
    if word == "mxfp8":  # its scales are powers of two
        assert np.array_equal(through(word, 4 * ROWS), 4 * through(word, ROWS))


def test_emulation_says_the_error_of_the_output_and_keeps_the_bits() -> None:
    asked = {"block": "gated", "dtype": "bfloat16", "path": "row", "hidden": 256}
    errors = []
    for word in ("rows", "fp8", "nvfp4"):
        done = dysharp.emulate("dysharp", **asked, options={"dysharp.dispatch": word})
        assert (done.holds, done.rows) == (True, "" if word == "rows" else word)
        assert (f"{done.rows_error:.2%}" in str(done)) == (word != "rows")
        errors.append(done.rows_error)
    assert 0 < errors[0] < 0.006 < errors[1] < 0.06 < errors[2] < 0.2


# ---- conversion in the switch -----------------------------------------------------------------------------


def test_a_packet_of_mxfp8_by_hand() -> None:
    values = np.array([448.0, -1.0, 17.0, 19.0, 2.0**-9, 2.0**-10, 0.0])  # 17, 19: between 16, 18 and 20; the last but one: half a step
    assert from_mxfp8(to_mxfp8(through("mxfp8", values[None])[0])).tolist() == [448.0, -1.0, 16.0, 20.0, 2.0**-9, 0.0, 0.0]
    assert to_mxfp8(np.array([448.0, -1.0])) == bytes([0x7E, 0xB8, 127])  # 2^0 has the scale 127
    assert to_mxfp8(np.array([511.0 / 4])) == bytes([0x7E, 125])  # largest exponent 6: scale 2^-2, cut down to 448
    assert len(to_mxfp8(np.ones(64))) == 66
    assert len(to_mxfp8(np.ones(48))) == 50
    assert not from_mxfp8(to_mxfp8(np.zeros(40))).any()


def test_what_went_through_once_stays() -> None:
    once = through("mxfp8", ROWS)
    assert np.array_equal(through("mxfp8", once), once)
    assert all(np.array_equal(from_mxfp8(to_mxfp8(row)), row) for row in once)


def test_a_value_that_was_never_written_is_not_converted() -> None:
    bf16 = number("bfloat16")
    with pytest.raises(EmulationMismatch, match="conversion to mxfp8: found nan, expected finite sums"):
        rounded(bf16, "mxfp8", bf16.load(bf16.poison((8,))))
    with pytest.raises(EmulationMismatch, match="found inf"):
        rounded(bf16, "mxfp8", np.array([1.0, np.inf], np.float32))
    assert rounded(number("int32"), "mxfp8", np.array([3])).tolist() == [3]


def test_flits_and_bytes_of_a_converted_packet() -> None:
    model = load_model("deepseek-v3")
    cast = packet_in("mxfp8", model, DYMULTIMEM.payload_bytes)
    assert (cast.word, cast.packet_bytes) == ("mxfp8", 66)
    assert (DYMULTIMEM.data_flits(14336, 16), DYMULTIMEM.data_flits(14336, 16, cast)) == (112 * 8, 112 * 5)
    assert DYMULTIMEM.cast_bytes(14336, cast) == ROW_BYTES["mxfp8"](model)
    assert DYMULTIMEM.data_flits(128 + 64, 16, cast) == 5 + 3  # 32 values and a scale are 33 B


@pytest.mark.sampled
@pytest.mark.parametrize("asked", [{"combine": "mxfp8"}, {"sums": "mxfp8"}, {"combine": "mxfp8", "sums": "mxfp8"}])
def test_converted_sums_keep_their_bits_under_every_fault(asked: dict[str, str]) -> None:
    options = {f"dysharp.{name}": word for name, word in asked.items()}
    for path, faults in (("row", ()), ("packet", ()), ("packet", tuple(MACHINE))):
        done = dysharp.emulate("dysharp", block="gated", dtype="bfloat16", path=path, hidden=160, backward=True, inject=list(faults), options=options)
        assert done.holds, done
        assert faults or 0.01 < done.rows_error < 0.05
        assert f"the switch sums {asked.get('combine', 'rows')} and sends {asked.get('sums', 'rows')}" in str(done)


def test_sums_that_leave_the_table_early_stay_wide() -> None:
    asked = {"block": "gated", "dtype": "bfloat16", "path": "packet", "hidden": 256, "options": {"dysharp.sums": "mxfp8"}}
    assert dysharp.emulate("dysharp", **asked, inject=["evict"]).rows_error < 0.9 * dysharp.emulate("dysharp", **asked).rows_error


def test_payload_up_and_down() -> None:
    layer = {"model": "S-8", "gpus": 4, "tokens": 16, "routing": "uniform"}
    moved = [
        dysharp.run("dysharp", **layer, options={"dysharp.combine": combine, "dysharp.sums": sums}).traffic_bytes
        for combine, sums in (("rows", "rows"), ("mxfp8", "rows"), ("rows", "mxfp8"))
    ]
    (up, down), (less_up, same_down), (same_up, less_down) = ((one["up"]["combine"], one["down"]["combine"]) for one in moved)
    assert (same_up, same_down) == (up, down)
    assert (64 * less_up, 64 * less_down) == (33 * up, 33 * down)


@pytest.mark.slow
def test_a_train_that_forgets_a_conversion_differs_from_its_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(framing: Framing, *given: int, forgets: str) -> object:
        return pull_train(replace(framing, **{forgets: AS_IS}), *given)

    asked = {"combine": "mxfp8", "sums": "mxfp8"}
    assert conformance("dysharp", options=asked, rules=["packets_have_the_engine_bytes"])
    for forgets in ("answer", "total"):
        monkeypatch.setattr(builder, "pull_train", partial(mutant, forgets=forgets))
        assert not conformance("dysharp", options=asked, rules=["packets_have_the_engine_bytes"]), forgets


def test_bounds_know_converted_rows() -> None:
    layer = {"model": "S-8", "gpus": 8, "tokens": 256, "routing": "uniform", "cluster": "paper-gh200-nvl32"}
    asked = {"dysharp.dispatch": "nvfp4", "dysharp.combine": "mxfp8", "dysharp.sums": "mxfp8", "dysharp.compute": False}
    done = dysharp.run("dysharp", **layer, options=asked)
    assert done.workload_bound_us < done.bound_us < done.time_us
    plain = dysharp.run("dysharp", **layer, options={"dysharp.compute": False})
    assert done.workload_bound_us < 0.6 * plain.workload_bound_us < plain.bound_us


def test_conversion_that_no_switch_has() -> None:
    with pytest.raises(ConfigError, match=r"dysharp.combine: found 'fp8', expected rows or mxfp8"):
        dysharp.run("dysharp", model="S-8", gpus=4, tokens=16, options={"dysharp.combine": "fp8"})
    with pytest.raises(ConfigError, match="found mxfp8, rows over several domains, expected rows"):
        dysharp.run("dysharp", model="S-8", cluster="hw-dgx-b200-x2", tokens=16, options={"dysharp.combine": "mxfp8"})
