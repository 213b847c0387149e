"""Bit fields that are declared by name and width. The first field is the most significant. Bytes are big-endian.

>>> NIBBLES = Layout("pair", (Field("high", 4, "first"), Field("low", 4, "second")))
>>> hex(pack(NIBBLES, {"high": 10, "low": 3}))
'0xa3'
>>> unpack(NIBBLES, 0xA3)
{'high': 10, 'low': 3}
"""

from collections.abc import Mapping
from dataclasses import field
from operator import index
from typing import Final, NoReturn

from dysharp.base import IsaError, Tally, frozen

SPARE: Final = "spare"


@frozen
class Field:
    """`width` bits (at least 1) for an unsigned integer. A field called `spare` is always zero and takes no value."""

    name: str
    width: int
    meaning: str

    @property
    def limit(self) -> int:
        """The greatest value."""
        return (1 << self.width) - 1


@frozen
class Layout:
    """Fields from the most to the least significant bit. `name` begins every error message."""

    name: str
    fields: tuple[Field, ...]
    bits: int = field(init=False)
    slots: tuple[tuple[str, int, int], ...] = field(init=False, repr=False)
    """(name, shift, limit) of every field that takes a value. Computed once, because there are many packets."""
    spare_mask: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bits = sum(f.width for f in self.fields)
        shift, spare, slots = bits, 0, []
        for f in self.fields:
            assert f.width > 0, f.name
            shift -= f.width
            if f.name == SPARE:
                spare |= f.limit << shift
            else:
                slots.append((f.name, shift, f.limit))
        assert len({name for name, _, _ in slots}) == len(slots), f"{self.name}: two fields of one name"
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "slots", tuple(slots))
        object.__setattr__(self, "spare_mask", spare)

    def positions(self) -> dict[str, tuple[int, int]]:
        """(highest, lowest) bit of every field that takes a value. Bit 0 is the least significant."""
        return {name: (shift + limit.bit_length() - 1, shift) for name, shift, limit in self.slots}


def pack(layout: Layout, values: Mapping[str, int]) -> int:
    """The word of `layout.bits` bits with `values`, one value for every field except the spare fields.

    Raises IsaError for a value out of range, for a missing field and for a name that the layout does not have.
    """
    word = 0
    try:
        for name, shift, limit in layout.slots:
            # `index` makes a Python integer: one of NumPy would overflow silently in the shift below.
            value = index(values[name])
            if not 0 <= value <= limit:
                out_of_range(layout.name, name, value, 0, limit)
            word |= value << shift
    except KeyError as missing:
        raise IsaError(f"{layout.name} field {missing.args[0]}: found none, expected a value") from None
    if len(values) != len(layout.slots):
        unknown = next(name for name in values if name not in layout.positions())
        raise IsaError(f"{layout.name} field {unknown}: found a value, expected no such field")
    return word


def unpack(layout: Layout, word: int) -> Tally:
    """The value of every field except the spare fields. Raises IsaError for a long word or a set spare bit."""
    if not 0 <= word < 1 << layout.bits:
        raise IsaError(f"{layout.name}: found {word:#x}, expected {layout.bits} bits")
    if word & layout.spare_mask:
        raise IsaError(f"{layout.name} spare bits: found {word & layout.spare_mask:#x}, expected 0")
    return {name: word >> shift & limit for name, shift, limit in layout.slots}


def out_of_range(layout: str, name: str, value: int, low: int, high: int) -> NoReturn:
    """Raise the IsaError of a value that a field cannot hold."""
    raise IsaError(f"{layout} field {name}: found {value}, expected {low} .. {high}")
