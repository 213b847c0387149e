"""Source side: collects the answers of open transactions."""

from typing import Any, Generic

from dysharp.functional.network.messages import NOTHING, Value, WireFormat
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.switching import session_of
from dysharp.functional.network.transaction import Session, T
from dysharp.isa.commands import Command
from dysharp.isa.packets import Packet
from dysharp.protocol import collect

MERGED = frozenset({Command.MERGED_ACK, Command.EXPLICIT_ACK})


class Sources(Generic[T]):
    """The sources of all GPUs, with expected and received contributions."""

    def __init__(self, n_gpus: int, fmt: WireFormat, statistics: Statistics) -> None:
        self._fmt, self._statistics = fmt, statistics
        self._collects: list[collect.CollectState[Value]] = [collect.empty() for _ in range(n_gpus)]
        self._parts: dict[Session, bytes] = {}

    def open(self, t: T) -> None:
        """`t` waits for its contributions from now on."""
        self._collects[t.source], _ = collect.step(self._collects[t.source], collect.Open(t.tag, t.n_targets))

    def add(self, t: T, attempt: int, count: int, value: Value) -> Value | None:
        """Add `count` contributions to an attempt of `t`. Returns the unrounded sum if `t` is complete, else None."""
        self._collects[t.source], outputs = collect.step(self._collects[t.source], collect.PartialSum(t.tag, attempt, count, value))
        for out in outputs:
            if isinstance(out, collect.Complete):
                return out.value
            self._statistics.table("collect")["discarded"] += 1
        return None

    def arrive(self, t: T, packet: Packet, history: Any) -> Value | None:
        """Receive a merged acknowledgement, a result, a partial sum, or a response that the switch did not merge.

        Returns as `add`.
        """
        if packet.op in MERGED:
            return self.add(t, packet.attempt, t.n_far, NOTHING)
        data = self._whole(t, packet) if packet.op == Command.PARTIAL else packet.payload
        if not data:
            return None
        count = t.n_far if packet.op == Command.EXPLICIT_RESULT else packet.count
        return self.add(t, packet.attempt, count, Value(self._fmt.read(data, packet.dtype), history))

    def _whole(self, t: T, packet: Packet) -> bytes:
        """The payload of a partial sum if all its packets have arrived, else b"".

        A partial sum can take several packets, which arrive in order.
        """
        session = session_of(packet)
        data = self._parts.pop(session, b"") + packet.payload
        if len(data) == t.elements * packet.dtype.item_bytes:
            return data
        self._parts[session] = data
        return b""
