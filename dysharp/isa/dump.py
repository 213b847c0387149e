"""Readable text of a packet, flit by flit, as a protocol analyser prints it."""

import struct
from collections.abc import Iterator
from typing import Final

from dysharp.isa.commands import FLIT_BITS, FLIT_BYTES, RULES, Command, Dtype, Half, Stage, VirtualChannel
from dysharp.isa.fields import unpack
from dysharp.isa.packets import IDS_PER_FLIT, Packet, encode, flits, replica_form

SHOWN: Final = 4  # values of a data flit that are printed
HEX_DIGITS: Final = 2 * FLIT_BYTES + 3  # with the three spaces between four groups


def dump(packet: Packet) -> str:
    """The flits of `packet`: hexadecimal at the left, meaning at the right, no newline at the end.

    | flit | meaning |
    |---|---|
    | flit 0 | one field per line with its bit range; bit 127 is sent first |
    | extension flit | its ids, or its address |
    | data flit | its first values, by dtype |

    Raises IsaError for a packet that cannot be encoded.
    """
    wire = encode(packet)
    length = flits(packet)
    lines = [f"{RULES[packet.op].name}, {length} flit{'s' * (length > 1)}"]
    for number, start in enumerate(range(0, len(wire), FLIT_BYTES)):
        flit = wire[start : start + FLIT_BYTES]
        left = f"{number:>3}  {flit.hex(' ', 4)}"
        for meaning in _meaning(packet, number, flit):
            lines.append(f"{left}  {meaning}")
            left = " " * (5 + HEX_DIGITS)
    return "\n".join(lines)


def _meaning(packet: Packet, number: int, flit: bytes) -> Iterator[str]:
    first_data = flits(packet) - -(-len(packet.payload) // FLIT_BYTES)
    if number == 0:
        yield from _header(packet, flit)
    elif number >= first_data:
        yield _data(packet, FLIT_BYTES * (number - first_data))
    elif RULES[packet.op].half is Half.EXPLICIT:
        yield f"address {packet.further[number - 1]:#014x}"
    else:
        ids = packet.targets[IDS_PER_FLIT * (number - 1) : IDS_PER_FLIT * number]
        yield "targets " + " ".join(map(str, ids))


def _header(packet: Packet, flit: bytes) -> Iterator[str]:
    layout = RULES[packet.op].layout
    positions = layout.positions()
    assert layout.bits == FLIT_BITS
    for name, value in unpack(layout, int.from_bytes(flit, "big")).items():
        high, low = positions[name]
        yield f"[{high:>3}:{low:>3}] {name:<16} {_value(packet, name, value)}"


def _value(packet: Packet, name: str, value: int) -> str:
    names = {"command": Command, "virtual_channel": VirtualChannel, "dtype": Dtype, "stage": Stage}
    if name in names:
        return f"{value} {names[name](value).name}"
    if name == "address":
        return f"{value:#014x}"
    if name == "crc":
        return f"{value:#04x}"
    if name == "local_targets":
        form = replica_form(packet.local_experts, len(packet.targets))
        return f"{value:#06x} {form.value}: experts {' '.join(map(str, packet.targets))}"
    return str(value)


def _data(packet: Packet, start: int) -> str:
    """The first values of the flit that begins at byte `start` of the payload. An incomplete element is left out."""
    piece = packet.payload[start : start + FLIT_BYTES]
    size = packet.dtype.item_bytes
    n_values = len(piece) // size
    values = [_element(packet.dtype, piece[begin : begin + size]) for begin in range(0, min(n_values, SHOWN) * size, size)]
    more = [f"... {n_values - SHOWN} more"] if n_values > SHOWN else []
    return " ".join([f"data {start:>3}:", *values, *more])


def _element(dtype: Dtype, raw: bytes) -> str:
    if dtype is Dtype.NONE:
        return raw.hex()
    if dtype in (Dtype.INT32, Dtype.INT64):
        return str(int.from_bytes(raw, "little", signed=True))
    # The bits of a BF16 number are the upper half of an FP32 number.
    (number,) = struct.unpack("<f", raw.rjust(4, b"\0"))
    return f"{number:.6g}"
