"""Commands, the named numbers in a packet, and the layout of flit 0 for each command.

| part | source |
|---|---|
| address half of the `dymultimem` requests: 48 + 1 + 15 bits | DySHARP (arXiv 2605.05607), packet format |
| sixteen virtual channels per input port | DySHARP, methodology |
| replicas without extension flit | docs/design/0004, Packets; choice `dysharp.replica_form` |
| address half of row stores: 16 + 32 + 16 bits | MoE-Hub (arXiv 2605.05888) names the operands; widths are assumed, docs/design/0013 |
| commands, codes, control half | assumed: those of NVLink are not public |
"""

from __future__ import annotations

from enum import Enum, IntEnum
from pathlib import Path
from typing import Final

from dysharp.base import frozen, read_toml
from dysharp.isa.fields import Field, Layout

FLIT_BYTES: Final = 16
FLIT_BITS: Final = 128
MAX_PAYLOAD: Final = 256  # bytes in one packet


class Command(IntEnum):
    """What a packet is. No command has the code 0, because an idle link sends zeros."""

    DYST = 1
    DYLD = 2
    DYST_REPLICA = 3
    DYLD_REPLICA = 4
    ACK = 5
    MERGED_ACK = 6
    RESPONSE = 7
    RESULT = 8
    PARTIAL = 9
    NOTIFY = 10
    ST = 11
    LD = 12
    LD_RESPONSE = 13
    MULTIMEM_ST = 14
    MULTIMEM_LD = 15
    EXPLICIT_ST = 16
    EXPLICIT_LD = 17
    EXPLICIT_ACK = 18
    EXPLICIT_RESULT = 19
    ST_ROWSP = 20
    ST_ROWSP_NOP = 21
    ANNOUNCE = 22


class VirtualChannel(IntEnum):
    """The sixteen virtual channels of an input port: eight for requests, eight for answers.

    Answers never wait behind requests, so they always drain.
    """

    REQUEST_0, REQUEST_1, REQUEST_2, REQUEST_3, REQUEST_4, REQUEST_5, REQUEST_6, REQUEST_7 = range(8)
    ANSWER_0, ANSWER_1, ANSWER_2, ANSWER_3, ANSWER_4, ANSWER_5, ANSWER_6, ANSWER_7 = range(8, 16)


class Stage(IntEnum):
    """The stage bit. It selects the base address and the access in the memory manager of the target."""

    DISPATCH = 0
    COMBINE = 1


class Dtype(IntEnum):
    """Element type of the payload. Payloads are little-endian, as in memory."""

    NONE = 0
    INT32 = 1
    INT64 = 2
    FLOAT32 = 3
    BFLOAT16 = 4
    MXFP8 = 5

    @property
    def item_bytes(self) -> int:
        """Bytes of one element. 1 for NONE: its payload is plain bytes. Behind those of MXFP8 is a scale per 32, which is not in it."""
        return (1, 4, 8, 4, 2, 1)[self]

    @property
    def sum_dtype(self) -> Dtype:
        """The type in which a switch sums elements of this type: FLOAT32 for BFLOAT16, otherwise the type itself."""
        return Dtype.FLOAT32 if self is Dtype.BFLOAT16 else self


_TABLE: Final = read_toml(Path(__file__).with_suffix(".toml"))
_HALVES: Final = {name: tuple(Field(*one) for one in given) for name, given in _TABLE["half"].items()}


class Half(Enum):
    """The meanings of the 64-bit address half of flit 0."""

    REQUEST = _HALVES["REQUEST"]
    REPLICA = _HALVES["REPLICA"]
    ANSWER = _HALVES["ANSWER"]
    NOTICE = _HALVES["NOTICE"]
    PLAIN = _HALVES["PLAIN"]
    GROUP = _HALVES["GROUP"]
    EXPLICIT = _HALVES["EXPLICIT"]
    ROWSP = _HALVES["ROWSP"]
    ANNOUNCEMENT = _HALVES["ANNOUNCEMENT"]


class Data(Enum):
    """What the payload-bytes field counts."""

    NOTHING = "always 0"
    PAYLOAD = "bytes that the packet brings"
    WANTED = "bytes that the packet asks for"


CONTROL: Final = tuple(Field(*one) for one in _TABLE["control"])
CRC_BYTE: Final = FLIT_BYTES - 1  # the last field of flit 0 is its last byte
COMMAND_BYTE: Final = 8
COMMAND_SHIFT: Final = 3
assert CONTROL[0].width == 8 - COMMAND_SHIFT
assert CONTROL[-1].width == 8


@frozen
class _CommandEncoding:
    """How one command is encoded. `answer`: the packet travels on an answer channel."""

    name: str
    half: Half
    data: Data
    answer: bool
    layout: Layout


def _rule(name: str, half: str, data: str, answer: bool) -> _CommandEncoding:
    layout = Layout(name, Half[half].value + CONTROL)
    assert layout.bits == FLIT_BITS, name
    return _CommandEncoding(name, Half[half], Data[data], answer, layout)


RULES: Final = {Command[name]: _rule(**given) for name, given in _TABLE["command"].items()}


def virtual_channel(op: Command, lane: int = 0) -> VirtualChannel:
    """The virtual channel `lane` (0 .. 7) in the group of command `op`."""
    return VirtualChannel(lane + 8 * RULES[op].answer)
