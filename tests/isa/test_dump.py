"""The text of a packet names every field and shows the first values."""

import struct

import pytest

from dysharp.base.errors import IsaError
from dysharp.isa.commands import RULES, Command, Dtype, Stage
from dysharp.isa.dump import dump
from dysharp.isa.packets import Packet, encode

EXPLICIT_RESULT = """\
explicit result, 4 flits
  0  00000010 00000001 9c210001 800269ac  [127: 80] address          0x000000100000
                                          [ 79: 64] further          1
                                          [ 63: 59] command          19 EXPLICIT_RESULT
                                          [ 58: 55] virtual_channel  8 ANSWER_0
                                          [ 54: 52] dtype            2 INT64
                                          [ 51: 43] payload_bytes    32
                                          [ 42: 31] source_gpu       3
                                          [ 30: 11] tag              77
                                          [ 10:  8] attempt          1
                                          [  7:  0] crc              0xac
  1  00000000 00000000 00000000 00001000  address 0x000000001000
  2  fdffffff ffffffff 04000000 00000000  data   0: -3 4
  3  05000000 00000000 06000000 00000000  data  16: 5 6"""


def test_whole_text() -> None:
    payload = struct.pack("<4q", -3, 4, 5, 6)
    packet = Packet(Command.EXPLICIT_RESULT, 8, 3, 77, 1, Dtype.INT64, 1 << 20, further=(4096,), payload=payload)
    assert dump(packet) == EXPLICIT_RESULT


@pytest.mark.parametrize(
    ("dtype", "payload", "text"),
    [
        (Dtype.NONE, b"\x01\xff", "data   0: 01 ff"),
        (Dtype.INT32, struct.pack("<2i", -1, 7), "data   0: -1 7"),
        (Dtype.FLOAT32, struct.pack("<4f", 0.5, 1e-9, -2, 3), "data   0: 0.5 1e-09 -2 3"),
        (Dtype.BFLOAT16, bytes.fromhex("803f00c0") * 4, "data   0: 1 -2 1 -2 ... 4 more"),
        (Dtype.BFLOAT16, bytes.fromhex("803f00"), "data   0: 1"),  # half an element is left out
    ],
)
def test_values_by_dtype(dtype: Dtype, payload: bytes, text: str) -> None:
    last = dump(Packet(Command.ST, 0, 0, 0, dtype=dtype, payload=payload)).splitlines()[-1]
    assert last == f"  1  {encode(Packet(Command.ST, 0, 0, 0, dtype=dtype, payload=payload))[16:].hex(' ', 4)}  {text}"


@pytest.mark.parametrize(
    ("local_experts", "targets", "text"),
    [
        (8, (1, 4), "0x0012 bitmap: experts 1 4"),
        (32, (1, 4), "0x0481 three ids: experts 1 4"),
        (32, (1, 2, 3, 4), "0x0004 extension flits: experts 1 2 3 4"),
    ],
)
def test_local_targets(local_experts: int, targets: tuple[int, ...], text: str) -> None:
    packet = Packet(Command.DYLD_REPLICA, 0, 0, 0, stage=Stage.COMBINE, targets=targets, local_experts=local_experts, wanted_bytes=128)
    lines = dump(packet).splitlines()
    assert any(line.endswith(f"local_targets    {text}") for line in lines)
    assert ("targets 1 2 3 4" in lines[-1]) == (len(targets) == 4)


def test_ids_go_on_in_the_next_flit() -> None:
    lines = dump(Packet(Command.DYLD, 0, 0, 0, targets=tuple(range(10)), wanted_bytes=16)).splitlines()
    assert [line[42:] for line in lines[-2:]] == ["targets 0 1 2 3 4 5 6 7", "targets 8 9"]


def test_every_field_of_every_command_has_a_line() -> None:
    for op, rule in RULES.items():
        values: dict[str, object] = {}
        used = {name for name, _, _ in rule.layout.slots}
        values |= {"targets": (0,)} if used & {"target_count", "local_targets"} else {}
        values |= {"local_experts": 8} if "local_targets" in used else {}
        values |= {"count": 1} if "targets_included" in used else {}
        values |= {"payload": {"payload": b"x"}, "wanted": {"wanted_bytes": 1}}.get(rule.data.name.lower(), {})
        text = dump(Packet(op, 0, 0, 0, **values))  # type: ignore[arg-type]
        assert all(f"] {name} " in text for name in used)


def test_a_packet_that_cannot_travel_has_no_dump() -> None:
    with pytest.raises(IsaError, match=r"^st field payload_bytes: found 0, expected 1 .. 256$"):
        dump(Packet(Command.ST, 0, 0, 0))
