"""Packets as bits: flit 0, extension flits (targets or addresses), data flits. Flits have 16 B, fields are big-endian.

Source: docs/design/0004-functional-machine.md, section "Packets".
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from itertools import pairwise
from operator import index
from typing import Final

from dysharp.base import ByName, IsaError, Numbers, Tally, Texts, frozen
from dysharp.isa.commands import COMMAND_BYTE, COMMAND_SHIFT, CRC_BYTE, FLIT_BYTES, MAX_PAYLOAD, RULES, Command, Data, Dtype, Half, Stage
from dysharp.isa.fields import Layout, out_of_range, pack, unpack

BITMAP_EXPERTS: Final = 15  # most local experts for a bitmap with one bit per expert
INLINE_EXPERTS: Final = 32  # most local experts for ids of five bits
INLINE_IDS: Final = 3  # ids of five bits in fifteen bits
IDS_PER_FLIT: Final = 8
ID_BYTES: Final = 2
EXPERT_LIMIT: Final = 1 << 16
ADDRESS_LIMIT: Final = 1 << 48


@frozen
class Packet:
    """One packet of any command. A field that the command does not have stays at its default, or `encode` refuses."""

    op: Command
    channel: int
    """A `VirtualChannel`."""
    source: int
    """The GPU that issued the instruction, also in answers. Source, `tag` and `attempt` name a session."""
    tag: int
    attempt: int = 0
    dtype: Dtype = Dtype.NONE
    address: int = 0
    """Multimem or virtual address, in bytes."""
    stage: Stage = Stage.DISPATCH
    targets: Numbers = ()
    """Requests: experts in list order. Replicas: experts counted from the GPU's first expert, ascending.
    Any sequence or one-dimensional array of integers is encoded; `decode` gives a tuple."""
    local_experts: int = 0
    """Replicas: experts of the object on the receiving GPU. The number decides the form of the replica.
    Both ends know the number, so it does not travel."""
    count: int = 0
    """Acknowledgements, responses, results and partial sums: targets included, at least 1."""
    further: Numbers = ()
    """Explicit addressing: the addresses after the first."""
    group: int = 0
    token: int = 0
    expert: int = 0
    gpu: int = 0
    """Row stores and announcements: the GPU of the region."""
    region: int = 0
    row: int = 0
    offset: int = 0
    """Row stores: first byte of the row that the packet carries."""
    rows: int = 0
    wanted_bytes: int = 0
    """Loads: requested bytes, 1 .. 256."""
    payload: bytes = b""
    """Little-endian elements of `dtype`, 1 .. 256 B."""


class _ReplicaForm(Enum):
    """How a replica names its local experts."""

    BITMAP = "bitmap"
    IDS = "three ids"
    LIST = "extension flits"


def replica_form(local_experts: int, n_targets: int) -> _ReplicaForm:
    """The form of a replica with `n_targets` targets on a GPU that holds `local_experts` experts of the object."""
    if local_experts <= BITMAP_EXPERTS:
        return _ReplicaForm.BITMAP
    return _ReplicaForm.IDS if local_experts <= INLINE_EXPERTS and n_targets <= INLINE_IDS else _ReplicaForm.LIST


def _check_targets(name: str, targets: Sequence[int], experts: int) -> None:
    """Raise IsaError unless `targets` are distinct ids below `experts`, at least one. `name` begins the message."""
    if len(targets) == 0:
        raise IsaError(f"{name} targets: found none, expected at least 1")
    if min(targets) < 0 or max(targets) >= experts:
        outside = next(t for t in targets if not 0 <= t < experts)
        raise IsaError(f"{name} targets: found {outside}, expected 0 .. {experts - 1}")
    if len(set(targets)) < len(targets):
        twice = Counter(targets).most_common(1)[0][0]
        raise IsaError(f"{name} targets: found {twice} twice, expected distinct targets")


def flits(packet: Packet) -> int:
    """Length of the encoded packet in 16 B flits."""
    half = RULES[packet.op].half
    listed = 0
    if half is Half.REQUEST or (half is Half.REPLICA and replica_form(packet.local_experts, len(packet.targets)) is _ReplicaForm.LIST):
        listed = -(-len(packet.targets) // IDS_PER_FLIT)
    return 1 + listed + len(packet.further) + -(-len(packet.payload) // FLIT_BYTES)


def encode(packet: Packet, *, experts: int = EXPERT_LIMIT) -> bytes:
    """The bytes of the packet on the wire: `flits(packet)` flits of 16 bytes.

    `experts`: experts of the object, a bound on the ids of a request's list. Raises IsaError for a value that its field cannot hold, for a value
    without a field in this command, and for targets that are missing, repeated or out of range.
    """
    codec = _CODECS[packet.op]
    for name in codec.unused:
        if getattr(packet, name):
            raise IsaError(f"{codec.name} {name}: found {getattr(packet, name)!r}, expected none")
    values, extension = codec.half.write(packet, codec.name, experts)
    payload = packet.payload
    n_bytes = packet.wanted_bytes if codec.wants else len(payload)
    _check_data(codec, packet.dtype, n_bytes)
    values["command"] = packet.op
    values["virtual_channel"] = packet.channel
    values["dtype"] = packet.dtype
    values["payload_bytes"] = n_bytes
    values["source_gpu"] = packet.source
    values["tag"] = packet.tag
    values["attempt"] = packet.attempt
    values["crc"] = 0
    wire = bytearray(pack(codec.layout, values).to_bytes(FLIT_BYTES, "big") + extension + payload + bytes(-len(payload) % FLIT_BYTES))
    wire[CRC_BYTE] = _crc8(wire)
    return bytes(wire)


def decode(data: bytes, *, local_experts: int | None = None, experts: int = EXPERT_LIMIT) -> Packet:
    """The packet that `encode` wrote. Only replicas need `local_experts`. `experts`: as in `encode`.

    Raises IsaError for the first of these faults: a length that is no whole number of flits, an unknown command, a
    spare bit that is set, a length that flit 0 contradicts, a wrong CRC, contents that `encode` refuses.
    """
    if not data or len(data) % FLIT_BYTES:
        raise IsaError(f"packet: found {len(data)} bytes, expected a positive multiple of {FLIT_BYTES}")
    codec = _CODECS.get(data[COMMAND_BYTE] >> COMMAND_SHIFT)
    if codec is None:
        out_of_range("packet", "command", data[COMMAND_BYTE] >> COMMAND_SHIFT, min(Command).value, max(Command).value)
    name = codec.name
    field = unpack(codec.layout, int.from_bytes(data[:FLIT_BYTES], "big"))
    n_bytes = field["payload_bytes"]
    n_payload = n_bytes if codec.brings else 0
    start = FLIT_BYTES * (1 + codec.half.listed(field))
    end = start + n_payload
    if len(data) != end + -end % FLIT_BYTES:
        raise IsaError(f"{name}: found {len(data) // FLIT_BYTES} flits, expected {-(-end // FLIT_BYTES)}")
    crc = _crc8(data[:CRC_BYTE] + b"\0" + data[FLIT_BYTES:])
    if field["crc"] != crc:
        raise IsaError(f"{name} field crc: found {field['crc']:#04x}, expected {crc:#04x}")
    if field["dtype"] >= len(_DTYPES):
        out_of_range(name, "dtype", field["dtype"], 0, len(_DTYPES) - 1)
    dtype = _DTYPES[field["dtype"]]
    _check_data(codec, dtype, n_bytes)
    _check_padding(name, data, end)
    return Packet(
        codec.op, field["virtual_channel"], field["source_gpu"], field["tag"], field["attempt"], dtype,
        wanted_bytes=n_bytes if codec.wants else 0, payload=data[start:end],
        **codec.half.read(field, data[FLIT_BYTES:start], name, local_experts, experts),
    )  # fmt: skip


def partial_sums(request: Packet, sums: bytes, count: int, channel: int, packet_bytes: int = 128) -> tuple[Packet, ...]:
    """The packets that carry `sums` to the source. `sums` is the sum of `count` responses to `request`.

    The elements of `sums` have the type `request.dtype.sum_dtype`. FP32 sums of BF16 elements are twice as long as the
    elements, so a request for 128 B gives two packets of 128 B. Each packet has the multimem address of its first
    element, and `count`. Raises IsaError unless `sums` has one value per requested element.
    """
    dtype = request.dtype.sum_dtype
    expected = request.wanted_bytes // request.dtype.item_bytes * dtype.item_bytes
    if len(sums) != expected:
        raise IsaError(f"partial sum: found {len(sums)} bytes, expected {expected}")
    return tuple(
        Packet(
            Command.PARTIAL, channel, request.source, request.tag, request.attempt, dtype,
            request.address + start // dtype.item_bytes * request.dtype.item_bytes, request.stage, count=count,
            payload=sums[start : start + packet_bytes],
        )
        for start in range(0, len(sums), packet_bytes)
    )  # fmt: skip


# --- checks of `encode` and `decode` ---


def _check_data(codec: _Codec, dtype: Dtype, n_bytes: int) -> None:
    low, high = (1, MAX_PAYLOAD) if codec.brings or codec.wants else (0, 0)
    if not low <= n_bytes <= high:
        out_of_range(codec.name, "payload_bytes", n_bytes, low, high)
    if codec.op == Command.PARTIAL and dtype.sum_dtype != dtype:
        raise IsaError(f"{codec.name} field dtype: found {dtype.name}, expected the type of a sum, {dtype.sum_dtype.name}")


def _check_padding(name: str, data: bytes, start: int) -> None:
    if any(data[start:]):
        raise IsaError(f"{name} padding: found {data[start:].hex()}, expected zeros")


def _check_count(name: str, count: int) -> None:
    if count == 0:
        raise IsaError(f"{name} field targets_included: found 0, expected at least 1")


def _check_local(name: str, targets: Numbers, local_experts: int) -> None:
    if local_experts < 1:
        raise IsaError(f"{name} local_experts: found {local_experts}, expected at least 1")
    _check_targets(name, targets, local_experts)
    if any(a > b for a, b in pairwise(targets)):
        raise IsaError(f"{name} targets: found {targets}, expected ascending order")


def _check_further(name: str, first: int, further: Numbers) -> None:
    for address in further:
        if not 0 <= address < ADDRESS_LIMIT:
            out_of_range(name, "address", address, 0, ADDRESS_LIMIT - 1)
    addresses = (first, *further)
    if len(set(addresses)) < len(addresses):
        twice = Counter(addresses).most_common(1)[0][0]
        raise IsaError(f"{name} addresses: found {twice:#x} twice, expected distinct addresses")


# --- the address half and the extension flits: written, measured, read ---

Written = tuple[Tally, bytes]


def _list_ids(targets: Sequence[int]) -> bytes:
    return struct.pack(f">{len(targets)}H", *targets) + bytes(-len(targets) * ID_BYTES % FLIT_BYTES)


def _write_request(p: Packet, name: str, experts: int) -> Written:
    _check_targets(name, p.targets, min(experts, EXPERT_LIMIT))
    return {"address": p.address, "stage": p.stage, "target_count": len(p.targets)}, _list_ids(p.targets)


def _write_replica(p: Packet, name: str, _experts: int) -> Written:
    _check_local(name, p.targets, min(p.local_experts, EXPERT_LIMIT))
    form = replica_form(p.local_experts, len(p.targets))
    if form is _ReplicaForm.BITMAP:
        local = sum(1 << t for t in p.targets)
    elif form is _ReplicaForm.IDS:
        first, second, third = (*p.targets, p.targets[0], p.targets[0])[:INLINE_IDS]
        local = first << 10 | second << 5 | third
    else:
        local = len(p.targets)
    inline = form is not _ReplicaForm.LIST
    return {"inline": inline, "address": p.address, "stage": p.stage, "local_targets": local}, b"" if inline else _list_ids(p.targets)


def _write_answer(p: Packet, name: str, _experts: int) -> Written:
    _check_count(name, p.count)
    return {"address": p.address, "stage": p.stage, "targets_included": p.count}, b""


def _write_explicit(p: Packet, name: str, _experts: int) -> Written:
    _check_further(name, p.address, p.further)
    return {"address": p.address, "further": len(p.further)}, b"".join(index(a).to_bytes(FLIT_BYTES, "big") for a in p.further)


def _ids(extension: bytes, count: int, name: str) -> Numbers:
    _check_padding(name, extension, ID_BYTES * count)
    return struct.unpack_from(f">{count}H", extension)


def _read_request(field: Tally, extension: bytes, name: str, _local: int | None, experts: int) -> ByName:
    targets = _ids(extension, field["target_count"], name)
    _check_targets(name, targets, experts)
    return {"address": field["address"], "stage": _STAGES[field["stage"]], "targets": targets}


@cache
def _bitmap_targets(bitmap: int) -> Numbers:
    return tuple(e for e in range(BITMAP_EXPERTS) if bitmap >> e & 1)


def _inline_targets(local: int, local_experts: int) -> Numbers:
    if local_experts <= BITMAP_EXPERTS:
        return _bitmap_targets(local)
    first, second, third = local >> 10, local >> 5 & 31, local & 31
    if third != first:
        return first, second, third
    return (first,) if second == first else (first, second)


def _read_replica(field: Tally, extension: bytes, name: str, local_experts: int | None, _experts: int) -> ByName:
    if local_experts is None:
        raise IsaError(f"{name}: found no number of local experts, expected one")
    inline, local = field["inline"], field["local_targets"]
    canonical = replica_form(local_experts, 1 if inline else local) is not _ReplicaForm.LIST
    if inline != canonical:
        raise IsaError(f"{name} field inline: found {inline}, expected {canonical:d} with {local_experts} local experts")
    targets = _inline_targets(local, local_experts) if inline else _ids(extension, local, name)
    _check_local(name, targets, local_experts)
    return {"address": field["address"], "stage": _STAGES[field["stage"]], "targets": targets, "local_experts": local_experts}


def _read_answer(field: Tally, _extension: bytes, name: str, _local: int | None, _experts: int) -> ByName:
    _check_count(name, field["targets_included"])
    return {"address": field["address"], "stage": _STAGES[field["stage"]], "count": field["targets_included"]}


def _read_explicit(field: Tally, extension: bytes, name: str, _local: int | None, _experts: int) -> ByName:
    further = tuple(int.from_bytes(extension[begin : begin + FLIT_BYTES], "big") for begin in range(0, len(extension), FLIT_BYTES))
    _check_further(name, field["address"], further)
    return {"address": field["address"], "further": further}


@frozen
class _HalfCodec:
    """How an address half and its extension flits are written and read. `listed`: extension flits, from the fields."""

    used: Texts
    write: Callable[[Packet, str, int], Written]
    listed: Callable[[Tally], int]
    read: Callable[[Tally, bytes, str, int | None, int], ByName]


def _plain_half(*names: str) -> _HalfCodec:
    """A half without extension flits. Its fields are attributes of the packet."""

    def write(p: Packet, _name: str, _experts: int) -> Written:
        return {name: getattr(p, name) for name in names}, b""

    def read(field: Tally, _extension: bytes, _name: str, _local: int | None, _experts: int) -> ByName:
        return {name: field[name] for name in names}

    return _HalfCodec(names, write, lambda _field: 0, read)


_HALVES: Final = {
    Half.REQUEST: _HalfCodec(("address", "stage", "targets"), _write_request, lambda field: -(-field["target_count"] // IDS_PER_FLIT), _read_request),
    Half.REPLICA: _HalfCodec(
        ("address", "stage", "targets", "local_experts"),
        _write_replica,
        lambda field: 0 if field["inline"] else -(-field["local_targets"] // IDS_PER_FLIT),
        _read_replica,
    ),
    Half.ANSWER: _HalfCodec(("address", "stage", "count"), _write_answer, lambda _field: 0, _read_answer),
    Half.NOTICE: _plain_half("token", "expert"),
    Half.PLAIN: _plain_half("address"),
    Half.GROUP: _plain_half("address", "group"),
    Half.EXPLICIT: _HalfCodec(("address", "further"), _write_explicit, lambda field: field["further"], _read_explicit),
    Half.ROWSP: _plain_half("gpu", "region", "row", "offset"),
    Half.ANNOUNCEMENT: _plain_half("gpu", "region", "rows"),
}


@frozen
class _Codec:
    """All constants of one command. The constants are collected once, because members of an Enum are slow to reach."""

    op: Command
    name: str
    layout: Layout
    half: _HalfCodec
    brings: bool
    wants: bool
    unused: Texts


def _codec(op: Command) -> _Codec:
    rule = RULES[op]
    half = _HALVES[rule.half]
    brings, wants = rule.data is Data.PAYLOAD, rule.data is Data.WANTED
    used = (*_ALWAYS, *half.used, *["payload"] * brings, *["wanted_bytes"] * wants)
    return _Codec(op, rule.name, rule.layout, half, brings, wants, tuple(f.name for f in fields(Packet) if f.name not in used))


_ALWAYS: Final = ("op", "channel", "source", "tag", "attempt", "dtype")
_CODECS: Final[dict[int, _Codec]] = {op.value: _codec(op) for op in Command}
_DTYPES: Final = tuple(Dtype)
_STAGES: Final = tuple(Stage)


POLYNOMIAL = 0x107
PERIOD = 127  # x^127 = 1 modulo the polynomial


def _times_x8(byte: int) -> int:
    for _ in range(8):
        byte <<= 1
        if byte & 0x100:
            byte ^= POLYNOMIAL
    return byte


_TABLE = bytes(_times_x8(byte) for byte in range(256))


def _crc8(data: bytes | bytearray) -> int:
    """The CRC-8 of `data`, 0 .. 255.

    A loop over all bytes would dominate the cost of a packet. Because x^127 = 1 modulo the polynomial, pieces of the
    message at distances of 127 bits are added first. The loop then covers one piece of 127 bits.
    """
    word = int.from_bytes(data, "big")
    width = PERIOD << (8 * len(data) // PERIOD).bit_length()
    while width > PERIOD:
        width >>= 1
        word = (word >> width) ^ (word & ((1 << width) - 1))
    crc = 0
    for byte in word.to_bytes(16, "big"):
        crc = _TABLE[crc ^ byte]
    return crc
