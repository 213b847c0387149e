"""Packets survive the wire, lie where the design puts them, and are refused when anything is wrong with them."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dysharp.base.errors import IsaError
from dysharp.isa.commands import FLIT_BYTES, RULES, Command, Data, Dtype, Half, Stage, VirtualChannel, virtual_channel
from dysharp.isa.packets import Packet, _check_targets, _crc8, _ReplicaForm, decode, encode, flits, partial_sums, replica_form

ADDRESS = 0x123456789ABC
DATA = bytes(range(16))
NUMBERS = {
    Half.NOTICE: {"token": 32, "expert": 16},
    Half.ROWSP: {"gpu": 6, "region": 10, "row": 32, "offset": 16},
    Half.ANNOUNCEMENT: {"gpu": 6, "region": 10, "rows": 32},
}
DYST = Packet(Command.DYST, 2, 3, 77, 1, Dtype.BFLOAT16, ADDRESS, Stage.COMBINE, targets=(7,), payload=DATA)
DYLD = Packet(Command.DYLD, 2, 3, 77, 1, Dtype.BFLOAT16, ADDRESS, Stage.COMBINE, targets=(7,), wanted_bytes=128)
REPLICA = Packet(Command.DYST_REPLICA, 2, 3, 77, 1, Dtype.BFLOAT16, ADDRESS, Stage.COMBINE, targets=(1, 4), local_experts=8, payload=DATA)
ACK = Packet(Command.ACK, 8, 3, 77, 1, address=ADDRESS, stage=Stage.DISPATCH, count=2)
PARTIAL = Packet(Command.PARTIAL, 8, 3, 77, 1, Dtype.FLOAT32, ADDRESS, Stage.COMBINE, count=2, payload=DATA)
NOTIFY = Packet(Command.NOTIFY, 0, 3, 77, token=0x01020304, expert=0xABCD)
MULTIMEM = Packet(Command.MULTIMEM_ST, 0, 3, 77, 1, Dtype.INT32, ADDRESS, group=0xBEEF, payload=DATA)
EXPLICIT = Packet(Command.EXPLICIT_ST, 0, 3, 77, 1, Dtype.INT32, ADDRESS, further=(1, 2**48 - 1), payload=DATA)


def _ascending(below: int, max_size: int = 40) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, below - 1), min_size=1, max_size=min(below, max_size)).map(lambda s: tuple(sorted(s)))


@st.composite
def _half(draw: st.DrawFn, half: Half) -> dict[str, object]:
    address = draw(st.integers(0, 2**48 - 1))
    stage = draw(st.sampled_from(Stage))
    if half is Half.REQUEST:
        targets = draw(st.lists(st.integers(0, 65535), min_size=1, max_size=40, unique=True))
        return {"address": address, "stage": stage, "targets": tuple(targets)}
    if half is Half.REPLICA:
        local = draw(st.one_of(st.integers(1, 40), st.just(65536)))
        return {"address": address >> 1, "stage": stage, "targets": draw(_ascending(local)), "local_experts": local}
    if half is Half.ANSWER:
        return {"address": address, "stage": stage, "count": draw(st.integers(1, 32767))}
    if half in NUMBERS:
        return {name: draw(st.integers(0, 2**bits - 1)) for name, bits in NUMBERS[half].items()}
    if half is Half.EXPLICIT:
        others = st.integers(0, 2**48 - 1).filter(lambda a: a != address)
        return {"address": address, "further": tuple(draw(st.lists(others, max_size=40, unique=True)))}
    return {"address": address} | ({"group": draw(st.integers(0, 65535))} if half is Half.GROUP else {})


@st.composite
def packets(draw: st.DrawFn, op: Command) -> Packet:
    rule = RULES[op]
    values = draw(_half(rule.half))
    if rule.data is Data.PAYLOAD:
        values["payload"] = draw(st.binary(min_size=1, max_size=256))
    if rule.data is Data.WANTED:
        values["wanted_bytes"] = draw(st.integers(1, 256))
    return Packet(
        op,
        draw(st.sampled_from(VirtualChannel)),
        draw(st.integers(0, 4095)),
        draw(st.integers(0, 2**20 - 1)),
        draw(st.integers(0, 7)),
        draw(st.sampled_from([d for d in Dtype if op is not Command.PARTIAL or d is not Dtype.BFLOAT16])),
        **values,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("op", Command)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(op: Command, data: st.DataObject) -> None:
    packet = data.draw(packets(op))
    wire = encode(packet)
    assert len(wire) == 16 * flits(packet)
    assert decode(wire, local_experts=packet.local_experts or None) == packet


@pytest.mark.parametrize("op", Command)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_damage_to_eight_neighbouring_bits_is_refused(op: Command, data: st.DataObject) -> None:
    packet = data.draw(packets(op))
    wire = encode(packet)
    burst = data.draw(st.integers(1, 255)) << data.draw(st.integers(0, 8 * len(wire) - 8))
    # The code promises this for damage of the message and for damage of the CRC byte, which lies inside; not for both at once.
    crc_byte = 255 << 8 * (len(wire) - FLIT_BYTES)
    assume(not burst & crc_byte or not burst & ~crc_byte)
    damaged = (int.from_bytes(wire, "big") ^ burst).to_bytes(len(wire), "big")
    with pytest.raises(IsaError):
        decode(damaged, local_experts=packet.local_experts or None)


@given(st.binary(max_size=400))
def test_noise_is_a_packet_or_refused(noise: bytes) -> None:
    try:
        packet = decode(noise, local_experts=8)
    except IsaError:
        return
    assert encode(packet) == noise


def test_integers_of_numpy() -> None:
    ids = np.array([1, 4], np.int32)
    numpy = replace(REPLICA, source=np.int64(3), address=np.int64(ADDRESS), targets=tuple(ids))
    assert encode(numpy) == encode(REPLICA)
    addresses = tuple(np.array(EXPLICIT.further, np.int64))
    assert encode(replace(EXPLICIT, further=addresses)) == encode(EXPLICIT)


# --- bit positions, computed by hand ---

# 00001 command, 0010 channel, 100 BF16, 000010000 bytes, 000000000011 source, 0...01001101 tag, 001 attempt: 56 bits; then the CRC.
CONTROL_DYST = "09408001800269"


@pytest.mark.parametrize(
    ("packet", "address_half"),
    [
        (DYST, "123456789abc8001"),  # 48 bits, stage 1, count 1
        (replace(DYST, stage=Stage.DISPATCH), "123456789abc0001"),
        (replace(DYST, address=2**48 - 1, stage=Stage.DISPATCH, targets=tuple(range(300))), "ffffffffffff012c"),
        (REPLICA, "923456789abc8012"),  # inline above 47 bits, stage 1, experts 1 and 4
        (replace(REPLICA, local_experts=15, targets=(0, 14)), "923456789abcc001"),
        (replace(REPLICA, local_experts=16, targets=(1, 4)), "923456789abc8481"),  # 00001 00100 00001
        (replace(REPLICA, local_experts=32, targets=(1, 4, 31)), "923456789abc849f"),
        (replace(REPLICA, local_experts=32, targets=(9,)), "923456789abca529"),  # 01001 01001 01001
        (replace(REPLICA, local_experts=32, targets=(1, 4, 5, 6)), "123456789abc8004"),
        (replace(REPLICA, local_experts=33, targets=(1,)), "123456789abc8001"),
        (ACK, "123456789abc0002"),
        (PARTIAL, "123456789abc8002"),
        (NOTIFY, "01020304abcd0000"),
        (replace(MULTIMEM, group=0), "123456789abc0000"),
        (MULTIMEM, "123456789abcbeef"),
        (EXPLICIT, "123456789abc0002"),
    ],
)
def test_address_half(packet: Packet, address_half: str) -> None:
    assert encode(packet)[:8].hex() == address_half


def test_control_half() -> None:
    wire = encode(DYST)
    assert wire[8:15].hex() == CONTROL_DYST
    assert wire[15] == _crc8(wire[:15] + b"\0" + wire[16:])
    widest = replace(DYST, channel=15, source=4095, tag=2**20 - 1, attempt=7, payload=bytes(256))
    # 00001 1111 100 100000000 111111111111 1...1 111
    assert encode(widest)[8:15].hex() == "0fc807ffffffff"


def test_extension_flits() -> None:
    ids = encode(replace(DYST, targets=tuple(range(0x100, 0x109))))[16:48]
    assert ids.hex() == "01000101010201030104010501060107" + "0108" + "00" * 14
    local = encode(replace(REPLICA, local_experts=64, targets=(1, 63)))[16:32]
    assert local.hex() == "0001003f" + "00" * 12
    assert encode(EXPLICIT)[16:48].hex() == "00" * 15 + "01" + "00" * 10 + "ff" * 6


def test_payload_is_padded_to_whole_flits() -> None:
    wire = encode(replace(DYST, payload=b"\xff" * 17))
    assert wire[32:].hex() == "ff" * 17 + "00" * 15
    assert decode(wire).payload == b"\xff" * 17


def test_replica_forms() -> None:
    assert [replica_form(m, n) for m, n in [(15, 15), (16, 3), (32, 3), (32, 4), (33, 1)]] == [
        _ReplicaForm.BITMAP,
        _ReplicaForm.IDS,
        _ReplicaForm.IDS,
        _ReplicaForm.LIST,
        _ReplicaForm.LIST,
    ]


def test_virtual_channels_of_requests_and_answers_are_apart() -> None:
    assert virtual_channel(Command.DYST) is VirtualChannel.REQUEST_0
    assert virtual_channel(Command.PARTIAL, lane=3) is VirtualChannel.ANSWER_3
    assert {op for op in Command if virtual_channel(op) >= 8} == {
        Command.ACK,
        Command.MERGED_ACK,
        Command.RESPONSE,
        Command.RESULT,
        Command.PARTIAL,
        Command.LD_RESPONSE,
        Command.EXPLICIT_ACK,
        Command.EXPLICIT_RESULT,
    }


# --- partial sums ---


def test_partial_sums_of_a_bf16_payload_are_two_packets_of_fp32() -> None:
    sums = struct.pack("<64f", *range(64))
    first, second = partial_sums(DYLD, sums, count=3, channel=9)
    assert (first.op, first.dtype, first.count, first.channel) == (Command.PARTIAL, Dtype.FLOAT32, 3, 9)
    assert (first.source, first.tag, first.attempt, first.stage) == (DYLD.source, DYLD.tag, DYLD.attempt, DYLD.stage)
    assert first.payload + second.payload == sums
    assert (first.address, second.address) == (ADDRESS, ADDRESS + 64)  # 32 elements of 2 B further
    assert [flits(p) for p in (first, second)] == [9, 9]
    assert [decode(encode(p)) for p in (first, second)] == [first, second]


@pytest.mark.parametrize(("dtype", "packets_out"), [(Dtype.INT32, 1), (Dtype.INT64, 1), (Dtype.FLOAT32, 1), (Dtype.BFLOAT16, 2)])
def test_partial_sums_of_other_types_keep_their_type(dtype: Dtype, packets_out: int) -> None:
    sums = bytes(128 // dtype.item_bytes * dtype.sum_dtype.item_bytes)
    sent = partial_sums(replace(DYLD, dtype=dtype), sums, 1, 8)
    assert len(sent) == packets_out
    assert {p.dtype for p in sent} == {dtype.sum_dtype}


def test_partial_sums_refuse_another_length() -> None:
    with pytest.raises(IsaError, match=r"^partial sum: found 128 bytes, expected 256$"):
        partial_sums(DYLD, bytes(128), 1, 8)


# --- what encode refuses ---


@pytest.mark.parametrize(
    ("packet", "text"),
    [
        (replace(DYST, targets=tuple(range(40000))), "dymultimem.st field target_count: found 40000, expected 0 .. 32767"),
        (replace(DYST, source=4096), "dymultimem.st field source_gpu: found 4096, expected 0 .. 4095"),
        (replace(DYST, tag=-1), "dymultimem.st field tag: found -1, expected 0 .. 1048575"),
        (replace(DYST, attempt=8), "dymultimem.st field attempt: found 8, expected 0 .. 7"),
        (replace(DYST, channel=16), "dymultimem.st field virtual_channel: found 16, expected 0 .. 15"),
        (replace(DYST, address=2**48), "dymultimem.st field address: found 281474976710656, expected 0 .. 281474976710655"),
        (replace(REPLICA, address=2**47), "dymultimem.st replica field address: found 140737488355328, expected 0 .. 140737488355327"),
        (replace(DYST, payload=b""), "dymultimem.st field payload_bytes: found 0, expected 1 .. 256"),
        (replace(DYST, payload=bytes(257)), "dymultimem.st field payload_bytes: found 257, expected 1 .. 256"),
        (replace(DYLD, wanted_bytes=0), "dymultimem.ld_reduce field payload_bytes: found 0, expected 1 .. 256"),
        (replace(DYST, targets=()), "dymultimem.st targets: found none, expected at least 1"),
        (replace(DYST, targets=(5, 9, 5)), "dymultimem.st targets: found 5 twice, expected distinct targets"),
        (replace(DYST, targets=(65536,)), "dymultimem.st targets: found 65536, expected 0 .. 65535"),
        (replace(DYST, targets=(3, -1)), "dymultimem.st targets: found -1, expected 0 .. 65535"),
        (replace(REPLICA, targets=(8,)), "dymultimem.st replica targets: found 8, expected 0 .. 7"),
        (replace(REPLICA, targets=(2, 2)), "dymultimem.st replica targets: found 2 twice, expected distinct targets"),
        (replace(REPLICA, targets=(4, 1)), "dymultimem.st replica targets: found (4, 1), expected ascending order"),
        (replace(REPLICA, targets=()), "dymultimem.st replica targets: found none, expected at least 1"),
        (replace(REPLICA, local_experts=0), "dymultimem.st replica local_experts: found 0, expected at least 1"),
        (replace(ACK, count=0), "acknowledgement field targets_included: found 0, expected at least 1"),
        (replace(ACK, count=32768), "acknowledgement field targets_included: found 32768, expected 0 .. 32767"),
        (replace(ACK, payload=DATA), f"acknowledgement payload: found {DATA!r}, expected none"),
        (replace(DYLD, payload=DATA), f"dymultimem.ld_reduce payload: found {DATA!r}, expected none"),
        (replace(DYST, count=1), "dymultimem.st count: found 1, expected none"),
        (replace(DYST, local_experts=8), "dymultimem.st local_experts: found 8, expected none"),
        (replace(NOTIFY, address=5), "notification address: found 5, expected none"),
        (replace(NOTIFY, token=2**32), "notification field token: found 4294967296, expected 0 .. 4294967295"),
        (replace(MULTIMEM, group=65536), "multimem.st field group: found 65536, expected 0 .. 65535"),
        (replace(MULTIMEM, stage=Stage.COMBINE), "multimem.st stage: found <Stage.COMBINE: 1>, expected none"),
        (replace(EXPLICIT, further=(2**48,)), "explicit st field address: found 281474976710656, expected 0 .. 281474976710655"),
        (replace(EXPLICIT, further=(4, ADDRESS)), "explicit st addresses: found 0x123456789abc twice, expected distinct addresses"),
        (replace(PARTIAL, dtype=Dtype.BFLOAT16), "partial sum field dtype: found BFLOAT16, expected the type of a sum, FLOAT32"),
    ],
)
def test_encode_refuses(packet: Packet, text: str) -> None:
    with pytest.raises(IsaError) as caught:
        encode(packet)
    assert str(caught.value) == text


def test_targets_are_below_the_experts_of_the_object() -> None:
    text = r"^dymultimem.st targets: found 7, expected 0 .. 6$"
    for act in (lambda: encode(DYST, experts=7), lambda: decode(encode(DYST), experts=7), lambda: _check_targets("dymultimem.st", (3, 7), 7)):
        with pytest.raises(IsaError, match=text):
            act()
    assert decode(encode(DYST, experts=8), experts=8) == DYST


# --- what decode refuses ---


def _forge(packet: Packet, *, head: int = 0, body: dict[int, int] | None = None) -> bytes:
    """The packet with bits of flit 0 flipped by `head`, other bytes replaced, and a CRC that fits."""
    wire = bytearray(encode(packet))
    wire[:16] = (int.from_bytes(wire[:16], "big") ^ head).to_bytes(16, "big")
    for at, value in (body or {}).items():
        wire[at] = value
    wire[15] = 0
    wire[15] = _crc8(wire)
    return bytes(wire)


IDS = replace(REPLICA, local_experts=32, targets=(1, 4))  # 00001 00100 00001 in bits 78 .. 64
LISTED = replace(REPLICA, local_experts=40, targets=(1, 4))


@pytest.mark.parametrize(
    ("wire", "local_experts", "text"),
    [
        (b"", None, "packet: found 0 bytes, expected a positive multiple of 16"),
        (bytes(17), None, "packet: found 17 bytes, expected a positive multiple of 16"),
        (bytes(16), None, "packet field command: found 0, expected 1 .. 22"),
        (_forge(DYST, head=(1 ^ 31) << 59), None, "packet field command: found 31, expected 1 .. 22"),
        (encode(DYST)[:-16], None, "dymultimem.st: found 2 flits, expected 3"),
        (encode(DYST) + bytes(16), None, "dymultimem.st: found 4 flits, expected 3"),
        (encode(ACK) + bytes(16), None, "acknowledgement: found 2 flits, expected 1"),
        (encode(EXPLICIT)[:16], None, "explicit st: found 1 flits, expected 4"),
        (_forge(DYST, head=8 << 64), None, "dymultimem.st: found 3 flits, expected 4"),
        (_forge(DYST, head=7 << 52 ^ 4 << 52), None, "dymultimem.st field dtype: found 7, expected 0 .. 5"),
        (_forge(PARTIAL, head=7 << 52), None, "partial sum field dtype: found BFLOAT16, expected the type of a sum, FLOAT32"),
        (_forge(DYLD, head=128 << 43), None, "dymultimem.ld_reduce field payload_bytes: found 0, expected 1 .. 256"),
        (_forge(DYLD, head=256 << 43), None, "dymultimem.ld_reduce field payload_bytes: found 384, expected 1 .. 256"),
        (_forge(ACK, head=16 << 43), None, "acknowledgement field payload_bytes: found 16, expected 0 .. 0"),
        (_forge(ACK, head=2 << 64), None, "acknowledgement field targets_included: found 0, expected at least 1"),
        (_forge(NOTIFY, head=3 << 64), None, "notification spare bits: found 0x30000000000000000, expected 0"),
        (_forge(replace(DYST, payload=b"abc"), body={47: 1}), None, "dymultimem.st padding: found 00000000000000000000000001, expected zeros"),
        (_forge(DYST, body={31: 1}), None, "dymultimem.st padding: found 0000000000000000000000000001, expected zeros"),
        (_forge(EXPLICIT, body={25: 1}), None, "explicit st field address: found 281474976710657, expected 0 .. 281474976710655"),
        (
            _forge(EXPLICIT, body={31: 255, **dict.fromkeys(range(26, 31), 255)}),
            None,
            "explicit st addresses: found 0xffffffffffff twice, expected distinct addresses",
        ),
        (_forge(replace(DYST, targets=(3, 7)), body={17: 7}), None, "dymultimem.st targets: found 7 twice, expected distinct targets"),
        (encode(REPLICA), None, "dymultimem.st replica: found no number of local experts, expected one"),
        (encode(REPLICA), 4, "dymultimem.st replica targets: found 4, expected 0 .. 3"),
        (_forge(REPLICA, head=0x12 << 64), 8, "dymultimem.st replica targets: found none, expected at least 1"),
        (encode(REPLICA), 0, "dymultimem.st replica local_experts: found 0, expected at least 1"),
        (encode(REPLICA), 40, "dymultimem.st replica field inline: found 1, expected 0 with 40 local experts"),
        (encode(LISTED), 8, "dymultimem.st replica field inline: found 0, expected 1 with 8 local experts"),
        (encode(LISTED), 32, "dymultimem.st replica field inline: found 0, expected 1 with 32 local experts"),
        (encode(LISTED), 64, None),
        (_forge(LISTED, body={19: 40}), 40, "dymultimem.st replica targets: found 40, expected 0 .. 39"),
        (_forge(LISTED, body={17: 5}), 40, "dymultimem.st replica targets: found (5, 4), expected ascending order"),
        (encode(IDS), 16, None),
        (_forge(IDS, head=(1 ^ 4) << 64), 32, "dymultimem.st replica targets: found 4 twice, expected distinct targets"),  # 1 4 4
        (_forge(IDS, head=(4 ^ 1) << 69 | (1 ^ 5) << 64), 32, "dymultimem.st replica targets: found 1 twice, expected distinct targets"),  # 1 1 5
        (_forge(IDS, head=(4 ^ 20) << 69), 16, "dymultimem.st replica targets: found 20, expected 0 .. 15"),
        (_forge(IDS, head=(1 ^ 6) << 74), 32, "dymultimem.st replica targets: found (6, 4, 1), expected ascending order"),
    ],
)
def test_decode_refuses(wire: bytes, local_experts: int | None, text: str | None) -> None:
    if text is None:
        assert decode(wire, local_experts=local_experts).local_experts == local_experts
        return
    with pytest.raises(IsaError) as caught:
        decode(wire, local_experts=local_experts)
    assert str(caught.value) == text


def test_decode_refuses_a_wrong_crc() -> None:
    wire = bytearray(encode(DYST))
    wire[40] ^= 1
    with pytest.raises(IsaError, match=r"^dymultimem.st field crc: found 0x[0-9a-f]{2}, expected 0x[0-9a-f]{2}$"):
        decode(bytes(wire))


def test_targets_may_be_an_array() -> None:
    store = replace(DYST, source=np.int64(3), tag=np.int32(7), targets=(5, 9, 42))
    assert encode(replace(store, targets=np.array([5, 9, 42]))) == encode(store)
    with pytest.raises(IsaError, match=r"dymultimem.st targets: found none, expected at least 1"):
        encode(replace(store, targets=np.array([], int)))
