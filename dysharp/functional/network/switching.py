"""Switch planes: copies of requests, merged acknowledgements, and the reduction table of every source-facing port."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, cast

from dysharp.functional.network.messages import LANES, Value, WireFormat, answer, dynamic_copies, plain_copies, word_of
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.transaction import Session, T
from dysharp.isa.commands import Command, virtual_channel
from dysharp.isa.packets import Packet, partial_sums
from dysharp.protocol import reduction

NO_LIMIT = 1 << 30
MERGED: dict[Command, Command] = {Command.EXPLICIT_ST: Command.EXPLICIT_ACK}
RESULT: dict[Command, Command] = {Command.EXPLICIT_LD: Command.EXPLICIT_RESULT}
Port = tuple[int, int]  # (plane, source GPU)


def session_of(packet: Packet) -> Session:
    """The session that a packet belongs to."""
    return packet.source, packet.tag, packet.attempt


class Switch(Generic[T]):
    """All switch planes.

    `send(gpu, plane, packet, history, transaction)` puts a packet on a down link. `opened(port, session)` is called for
    every reduction session. A packet from an up link is handled at once.
    """

    def __init__(
        self,
        entries: int,
        experts_per_gpu: int,
        fmt: WireFormat,
        statistics: Statistics,
        send: Callable[[int, int, Packet, Any, T], None],
        opened: Callable[[Port, Session], None],
    ) -> None:
        self._experts_per_gpu, self._fmt, self._statistics = experts_per_gpu, fmt, statistics
        self._send, self._opened = send, opened
        self._sums: dict[Port, reduction.ReductionState[Value]] = defaultdict(lambda: reduction.empty(entries))
        self._acks: dict[Port, reduction.ReductionState[int]] = defaultdict(lambda: reduction.empty(NO_LIMIT))
        self._requests: dict[Session, tuple[Packet, T]] = {}
        self._counts = statistics.table("reduction", entries=entries)

    def handle(self, plane: int, packet: Packet, history: Any, t: T) -> None:
        """A request, a response or an acknowledgement of `t` came up from a GPU."""
        port = (plane, packet.source)
        if packet.op == Command.ACK:
            self._acknowledge(port, packet)
        elif packet.op == Command.RESPONSE:
            value = Value(self._fmt.read(packet.payload, packet.dtype), history)
            self._reduce(port, reduction.Response(session_of(packet), packet.count, value))
        else:
            self._request(port, packet, t)

    def expire(self, port: Port, session: Session) -> None:
        """Time out a session that was idle too long. A closed session is ignored."""
        if session in self._sums[port].table:
            self._statistics.injected["timeout"] += 1
        self._reduce(port, reduction.Expire(session))

    def forget(self, session: Session) -> None:
        """Forget `session`, which has no packet in flight."""
        self._requests.pop(session, None)

    def _request(self, port: Port, packet: Packet, t: T) -> None:
        session = session_of(packet)
        self._requests[session] = (packet, t)
        if t.pull:
            self._counts["sessions"] += 1
            self._reduce(port, reduction.Request(session, t.n_far))
            self._opened(port, session)
        else:
            self._acks[port], _ = reduction.step(self._acks[port], reduction.Request(session, t.n_far))
        copies = dynamic_copies(packet, self._experts_per_gpu, t.weights) if t.dynamic else plain_copies(packet, t.far)
        for gpu, copy in copies:
            self._send(gpu, port[0], copy, (), t)

    def _acknowledge(self, port: Port, packet: Packet) -> None:
        session = session_of(packet)
        self._acks[port], outputs = reduction.step(self._acks[port], reduction.Response(session, packet.count, 0))
        for out in outputs:
            request, t = self._requests.pop(session)
            merged = MERGED.get(request.op, Command.MERGED_ACK)
            self._send(t.source, port[0], answer(request, merged, out.count), (), t)

    def _reduce(self, port: Port, event: reduction.Event[Value]) -> None:
        before = len(self._sums[port].table)
        self._sums[port], outputs = reduction.step(self._sums[port], event)
        if isinstance(event, reduction.Request) and len(self._sums[port].table) == before:
            self._counts["evictions"] += 1
            self._statistics.injected["evict"] += 1
        for out in outputs:
            self._leave(port[0], out)

    def _leave(self, plane: int, out: reduction.Output[Value]) -> None:
        """Send an output of the table to the source: a rounded sum, an unrounded partial sum, or a response."""
        request, t = self._requests[cast(Session, out.session)]
        value = out.value
        if isinstance(out, reduction.Partial):
            self._counts["partial sums"] += 1
            data = self._fmt.write(value.array, request.dtype.sum_dtype)
            for packet in partial_sums(request, data, out.count, virtual_channel(Command.PARTIAL, request.channel % LANES)):
                self._send(t.source, plane, packet, _bracket("partial", value), t)
            return
        bypassed = isinstance(out, reduction.Bypass)
        op, dtype = (Command.RESPONSE, t.answer) if bypassed else (RESULT.get(request.op, Command.RESULT), t.total)
        if bypassed:
            self._counts["bypassed"] += 1
        history = value.parts if bypassed else _bracket("switch", value, word_of(dtype))
        payload = self._fmt.write(value.array, dtype or request.dtype)
        self._send(t.source, plane, answer(request, op, out.count, payload, dtype=dtype), history, t)


def _bracket(head: str, value: Value, word: str = "") -> Any:
    """The expression of a sum of this switch. Gate gradients have no expression."""
    return ((head, value.parts, word)[: 3 if word else 2],) if value.parts else ()
