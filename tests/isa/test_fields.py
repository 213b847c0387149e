"""Bit fields by name, and the CRC against a bit-by-bit one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dysharp.base.errors import IsaError
from dysharp.isa.commands import CONTROL, RULES, Command
from dysharp.isa.fields import Field, Layout, pack, unpack
from dysharp.isa.packets import _crc8

MIXED = Layout("mixed", (Field("a", 3, ""), Field("spare", 5, ""), Field("b", 56, ""), Field("c", 64, "")))


@given(st.integers(0, 7), st.integers(0, 2**56 - 1), st.integers(0, 2**64 - 1))
def test_round_trip(a: int, b: int, c: int) -> None:
    word = pack(MIXED, {"c": c, "a": a, "b": b})
    assert word == a << 125 | b << 64 | c
    assert unpack(MIXED, word) == {"a": a, "b": b, "c": c}


def test_integers_of_numpy_do_not_overflow() -> None:
    values = {"a": np.int8(7), "b": np.int64(3), "c": np.int32(1)}
    assert pack(MIXED, values) == 7 << 125 | 3 << 64 | 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": 8, "b": 0, "c": 0}, "mixed field a: found 8, expected 0 .. 7"),
        ({"a": -1, "b": 0, "c": 0}, "mixed field a: found -1, expected 0 .. 7"),
        ({"a": 1, "b": 0}, "mixed field c: found none, expected a value"),
        ({"a": 1, "b": 0, "c": 0, "d": 0}, "mixed field d: found a value, expected no such field"),
        ({"a": 1, "b": 0, "c": 0, "spare": 0}, "mixed field spare: found a value, expected no such field"),
    ],
)
def test_pack_refuses(values: dict[str, int], text: str) -> None:
    with pytest.raises(IsaError) as caught:
        pack(MIXED, values)
    assert str(caught.value) == text


def test_unpack_refuses() -> None:
    with pytest.raises(IsaError, match=r"^mixed spare bits: found 0x1[0]{30}, expected 0$"):
        unpack(MIXED, 1 << 120)
    with pytest.raises(IsaError, match=r"^mixed: found 0x1[0]{32}, expected 128 bits$"):
        unpack(MIXED, 1 << 128)


def test_every_flit_0_has_128_bits_and_its_own_name() -> None:
    assert set(RULES) == set(Command)
    assert {rule.layout.bits for rule in RULES.values()} == {128}
    assert len({rule.name for rule in RULES.values()}) == len(Command)
    assert sum(f.width for f in CONTROL) == 64


def _crc_by_bits(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x107) if crc & 0x80 else crc << 1
    return crc


@given(st.binary(max_size=700))
def test_crc(data: bytes) -> None:
    assert _crc8(data) == _crc_by_bits(data)


def test_crc_of_the_published_check_string() -> None:
    assert _crc8(b"123456789") == 0xF4


def test_crc_sees_every_burst_of_eight_bits() -> None:
    for length in (16, 160, 304):
        for position in range(8 * length - 7):
            for burst in (1, 0x81, 0xFF, 0xA5):
                assert _crc8((burst << position).to_bytes(length, "big")) != 0
