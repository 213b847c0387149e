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
from typing import Final

from dysharp.base import frozen
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


class Half(Enum):
    """The meanings of the 64-bit address half of flit 0."""

    REQUEST = (Field("address", 48, "multimem address"), Field("stage", 1, "Dispatch or Combine"), Field("target_count", 15, "listed experts"))
    REPLICA = (
        Field("inline", 1, "1: the targets are in this flit"),
        Field("address", 47, "multimem address"),
        Field("stage", 1, "Dispatch or Combine"),
        Field("local_targets", 15, "bitmap, three 5-bit ids or a count of local experts"),
    )
    ANSWER = (Field("address", 48, "multimem address"), Field("stage", 1, "Dispatch or Combine"), Field("targets_included", 15, "targets in it"))
    NOTICE = (Field("token", 32, "token"), Field("expert", 16, "expert that finished it"), Field("spare", 16, "zero"))
    PLAIN = (Field("address", 48, "address"), Field("spare", 16, "zero"))
    GROUP = (Field("address", 48, "multimem address"), Field("group", 16, "static multicast group"))
    EXPLICIT = (Field("address", 48, "first address"), Field("further", 16, "further addresses, one flit each"))
    ROWSP = (
        Field("gpu", 6, "MallocID: GPU of the region"),
        Field("region", 10, "MallocID: region on that GPU"),
        Field("row", 32, "RowID, unique over all GPUs; smaller ones go first"),
        Field("offset", 16, "RowOffset in bytes"),
    )
    ANNOUNCEMENT = (
        Field("gpu", 6, "MallocID: GPU of the region"),
        Field("region", 10, "MallocID: region on that GPU"),
        Field("spare", 16, "zero"),
        Field("rows", 32, "rows that the source has sent to the region"),
    )


class Data(Enum):
    """What the payload-bytes field counts."""

    NOTHING = "always 0"
    PAYLOAD = "bytes that the packet brings"
    WANTED = "bytes that the packet asks for"


CONTROL: Final = (
    Field("command", 5, "what the packet is"), Field("virtual_channel", 4, "0 .. 7 requests, 8 .. 15 answers"),
    Field("dtype", 3, "element type"), Field("payload_bytes", 9, "bytes brought or asked for"),
    Field("source_gpu", 12, "who issued the instruction"), Field("tag", 20, "which instruction of the source"),
    Field("attempt", 3, "which try of the instruction"), Field("crc", 8, "CRC-8 of the whole packet with this field zero"),
)  # fmt: skip
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


def _rule(name: str, half: Half, data: Data, answer: bool = False) -> _CommandEncoding:
    layout = Layout(name, half.value + CONTROL)
    assert layout.bits == FLIT_BITS, name
    return _CommandEncoding(name, half, data, answer, layout)


RULES: Final[dict[Command, _CommandEncoding]] = {
    Command.DYST: _rule("dymultimem.st", Half.REQUEST, Data.PAYLOAD),
    Command.DYLD: _rule("dymultimem.ld_reduce", Half.REQUEST, Data.WANTED),
    Command.DYST_REPLICA: _rule("dymultimem.st replica", Half.REPLICA, Data.PAYLOAD),
    Command.DYLD_REPLICA: _rule("dymultimem.ld_reduce replica", Half.REPLICA, Data.WANTED),
    Command.ACK: _rule("acknowledgement", Half.ANSWER, Data.NOTHING, answer=True),
    Command.MERGED_ACK: _rule("merged acknowledgement", Half.ANSWER, Data.NOTHING, answer=True),
    Command.RESPONSE: _rule("response", Half.ANSWER, Data.PAYLOAD, answer=True),
    Command.RESULT: _rule("result", Half.ANSWER, Data.PAYLOAD, answer=True),
    Command.PARTIAL: _rule("partial sum", Half.ANSWER, Data.PAYLOAD, answer=True),
    Command.NOTIFY: _rule("notification", Half.NOTICE, Data.NOTHING),
    Command.ST: _rule("st", Half.PLAIN, Data.PAYLOAD),
    Command.LD: _rule("ld", Half.PLAIN, Data.WANTED),
    Command.LD_RESPONSE: _rule("ld response", Half.PLAIN, Data.PAYLOAD, answer=True),
    Command.MULTIMEM_ST: _rule("multimem.st", Half.GROUP, Data.PAYLOAD),
    Command.MULTIMEM_LD: _rule("multimem.ld_reduce", Half.GROUP, Data.WANTED),
    Command.EXPLICIT_ST: _rule("explicit st", Half.EXPLICIT, Data.PAYLOAD),
    Command.EXPLICIT_LD: _rule("explicit ld", Half.EXPLICIT, Data.WANTED),
    Command.EXPLICIT_ACK: _rule("explicit acknowledgement", Half.EXPLICIT, Data.NOTHING, answer=True),
    Command.EXPLICIT_RESULT: _rule("explicit result", Half.EXPLICIT, Data.PAYLOAD, answer=True),
    Command.ST_ROWSP: _rule("st.rowsp", Half.ROWSP, Data.PAYLOAD),
    Command.ST_ROWSP_NOP: _rule("st.rowsp.nop", Half.ROWSP, Data.PAYLOAD),
    Command.ANNOUNCE: _rule("announcement", Half.ANNOUNCEMENT, Data.NOTHING),
}


def virtual_channel(op: Command, lane: int = 0) -> VirtualChannel:
    """The virtual channel `lane` (0 .. 7) in the group of command `op`."""
    return VirtualChannel(lane + 8 * RULES[op].answer)
