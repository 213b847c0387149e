"""Packets that the network makes: copies of a request for each GPU, and answers to a request; values with their history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from dysharp.base import Array, ByName, frozen
from dysharp.functional.network.transaction import Transaction
from dysharp.functional.numbers import Number, number
from dysharp.functional.sums import Expression, add_in_order
from dysharp.functional.wire import from_mxfp8, rounded, to_mxfp8
from dysharp.isa.commands import Command, Dtype, Stage, virtual_channel
from dysharp.isa.packets import Packet

STORED = {dtype: number(dtype.name.lower()).stored for dtype in (Dtype.INT32, Dtype.FLOAT32, Dtype.BFLOAT16)}


@frozen
class Value:
    """A sum in the work dtype and its parts, in order."""

    array: Array
    parts: tuple[Expression, ...]

    def __add__(self, other: Value) -> Value:
        return Value(self.array + other.array, self.parts + other.parts)


NOTHING = Value(np.zeros(0), ())  # the value of an acknowledgement


@frozen
class WireFormat:
    """The wire format of values in a run. Every packet names its dtype. Sums are in the work dtype of `number`."""

    number: Number

    @property
    def payload(self) -> Dtype:
        """Element type of token rows."""
        return Dtype[self.number.name.upper()]

    @property
    def weight(self) -> Dtype:
        """Element type of gate weights and gate gradients: four bytes."""
        return self.payload.sum_dtype

    def read(self, data: bytes, dtype: Dtype) -> Array:
        """A payload of `dtype` elements as a vector in the work dtype."""
        return (from_mxfp8(data) if dtype is Dtype.MXFP8 else np.frombuffer(data, STORED[dtype])).astype(self.number.work)

    def write(self, array: Array, dtype: Dtype) -> bytes:
        """Values of the work dtype rounded into a payload of `dtype` elements."""
        return to_mxfp8(rounded(self.number, word_of(dtype), array)) if dtype is Dtype.MXFP8 else array.astype(STORED[dtype]).tobytes()


def word_of(dtype: Dtype) -> str:
    """The format of `rounded` that a type converts to, "" = none."""
    return "mxfp8" if dtype is Dtype.MXFP8 else ""


def hub_sum(rows: list[Array], width: int, number: Number, word: str = "") -> Array:
    """`[width]` sum of stored rows from left to right, `rounded` once, in the work dtype; zeros for no rows."""
    return number.load(rounded(number, word, add_in_order(rows, width, number)))


COPY: Final = {
    Command.DYST: Command.DYST_REPLICA,
    Command.DYLD: Command.DYLD_REPLICA,
    Command.EXPLICIT_ST: Command.ST,
    Command.EXPLICIT_LD: Command.LD,
}
LANES: Final = 8  # virtual channels of a group
PLAIN_LOADS: Final = frozenset({Command.LD, Command.EXPLICIT_LD, Command.MULTIMEM_LD})
WITHOUT_COUNT: Final = frozenset({Command.EXPLICIT_ACK, Command.EXPLICIT_RESULT})


def request(t: Transaction, attempt: int, lane: int, payload: bytes) -> Packet:
    """The request of a transaction. `payload`: b"" for a pull."""
    return Packet(
        t.command, virtual_channel(t.command, lane), t.source, t.tag, attempt, t.dtype, t.address, t.stage, t.targets, further=t.further,
        wanted_bytes=t.n_bytes if t.pull else 0, payload=payload,
    )  # fmt: skip


def dynamic_copies(request: Packet, experts_per_gpu: int, weights: bool) -> Iterator[tuple[int, Packet]]:
    """(GPU, replica) for every GPU that holds a target of a `dymultimem` request, ascending.

    A replica names its targets as local experts. `weights`: the replica's address is the request's address plus the
    position of the GPU's first target in the list, which must ascend.
    """
    by_gpu: dict[int, list[int]] = defaultdict(list)
    first: dict[int, int] = {}
    for i, target in enumerate(sorted(request.targets)):
        gpu, local = divmod(target, experts_per_gpu)
        first.setdefault(gpu, i)
        by_gpu[gpu].append(local)
    op = COPY[request.op]
    for gpu, targets in by_gpu.items():
        address = request.address + (first[gpu] if weights else 0)
        yield gpu, replace(request, op=op, address=address, targets=tuple(targets), local_experts=experts_per_gpu)


def plain_copies(request: Packet, gpus: Sequence[int]) -> Iterator[tuple[int, Packet]]:
    """(GPU, copy) of a plain, multicast or explicitly addressed request for every GPU of `gpus`."""
    op = COPY.get(request.op, request.op)
    copy = replace(request, op=op, channel=virtual_channel(op, request.channel % LANES), further=())
    for gpu in gpus:
        yield gpu, copy


def answer(request: Packet, op: Command, count: int, payload: bytes = b"", address: int = -1, dtype: Dtype = Dtype.NONE) -> Packet:
    """Answer `op` of `count` targets to `request`, on the answer channel of its lane.

    `address`, `dtype`: default is the request's.
    """
    if op in WITHOUT_COUNT:
        fields: ByName = {"further": request.further}
    else:
        # Plain loads have no stage bit; only Combine reads.
        fields = {"stage": Stage.COMBINE if request.op in PLAIN_LOADS else request.stage, "count": count}
    return Packet(
        op, virtual_channel(op, request.channel % LANES), request.source, request.tag, request.attempt,
        dtype or request.dtype if payload else Dtype.NONE, request.address if address < 0 else address, payload=payload, **fields,
    )  # fmt: skip
