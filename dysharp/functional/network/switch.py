"""Switch planes: target routing, replication, trimming, merged acknowledgements, and the reduction table of every source-facing port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from dysharp.functional.network.queues import Channels
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.values import Format, Value
from dysharp.functional.packets.instructions import DYNAMIC, EXPLICIT, Instruction
from dysharp.isa.commands import Command, Stage, virtual_channel
from dysharp.isa.packets import Packet, partial_sums
from dysharp.protocol import reduction

Session = tuple[int, int, int]  # source, tag, attempt
Members = list[tuple[int, int]]  # (GPU, rows there) of the far members of an instruction
NO_LIMIT = 1 << 30
COPY = {Command.DYST: Command.DYST_REPLICA, Command.DYLD: Command.DYLD_REPLICA, Command.EXPLICIT_ST: Command.ST, Command.EXPLICIT_LD: Command.LD}


def session_of(packet: Packet) -> Session:
    """What names a session: the request that opened it."""
    return packet.source, packet.tag, packet.attempt


class Switch:
    """All planes. `session_made(plane, session)` hears of every reduction session (for timeouts)."""

    def __init__(
        self,
        entries: int,
        fmt: Format,
        statistics: Statistics,
        channels: Channels,
        slots_per_gpu: int,
        session_made: Callable[[int, Session], None],
    ) -> None:
        self._fmt, self._statistics, self._channels = fmt, statistics, channels
        self._slots_per_gpu, self._session_made = slots_per_gpu, session_made
        self._sums: dict[tuple[int, int], reduction.ReductionState[Any]] = defaultdict(lambda: reduction.empty(entries))
        self._acks: reduction.ReductionState[int] = reduction.empty(NO_LIMIT)
        self._requests: dict[tuple[int, Session], tuple[Packet, Instruction]] = {}
        self._counts = statistics.table("reduction", entries=entries)

    def handle(self, plane: int, packet: Packet, ghost: Any, members: Members, one: Instruction) -> None:
        """A packet came up from a GPU."""
        if packet.op == Command.ACK:
            self._acknowledge(plane, packet, one)
        elif packet.op == Command.RESPONSE:
            value = Value(self._fmt.read(packet.payload, one.weights), ghost)
            self._reduce(plane, packet.source, reduction.Response(session_of(packet), packet.count, value))
        else:
            self._requests[plane, session_of(packet)] = (packet, one)
            if one.pull:
                self._open(plane, packet, members, one)
            else:
                targets = len(one.targets) if one.mode == DYNAMIC else len(members)
                self._acks, _ = reduction.step(self._acks, reduction.Request((plane, session_of(packet)), targets))
            self._replicate(plane, packet, members, one)

    # ---- going out -------------------------------------------------------------------------------------------------------------

    def _replicate(self, plane: int, packet: Packet, members: Members, one: Instruction) -> None:
        if one.mode != DYNAMIC:
            op = COPY.get(packet.op, packet.op)
            channel = virtual_channel(op, int(packet.channel) % 8)
            for gpu, _ in members:
                self._channels.send(False, gpu, plane, replace(packet, op=op, channel=channel, further=()))
            return
        # Experts are blocked by GPU and the list is ascending: each GPU's targets are one run of it.
        by_gpu: dict[int, list[int]] = defaultdict(list)
        first: dict[int, int] = {}
        for i, target in enumerate(packet.targets):
            gpu = target // self._slots_per_gpu
            first.setdefault(gpu, i)
            by_gpu[gpu].append(target % self._slots_per_gpu)
        op = COPY[packet.op]
        for gpu, local in by_gpu.items():
            address = packet.address + (first[gpu] if one.weights else 0)
            copy = replace(packet, op=op, address=address, targets=tuple(local), local_experts=self._slots_per_gpu)
            self._channels.send(False, gpu, plane, copy)

    # ---- coming back -----------------------------------------------------------------------------------------------------------

    def _acknowledge(self, plane: int, packet: Packet, one: Instruction) -> None:
        session = (plane, session_of(packet))
        self._acks, outputs = reduction.step(self._acks, reduction.Response(session, packet.count, 0))
        for out in outputs:
            request, _ = self._requests.pop(session)
            op = Command.EXPLICIT_ACK if one.mode == EXPLICIT else Command.MERGED_ACK
            fields: dict[str, Any] = {"further": request.further} if one.mode == EXPLICIT else {"stage": Stage.DISPATCH, "count": out.count}
            lane = int(packet.channel) % 8
            answer = Packet(op, virtual_channel(op, lane), packet.source, packet.tag, packet.attempt, address=request.address, **fields)
            self._channels.send(False, packet.source, plane, answer)

    def _open(self, plane: int, packet: Packet, members: Members, one: Instruction) -> None:
        targets = len(one.targets) if one.mode == DYNAMIC else len(members)
        self._counts["sessions"] += 1
        self._reduce(plane, packet.source, reduction.Request(session_of(packet), targets))
        self._session_made(plane, session_of(packet))

    def expire(self, plane: int, session: Session) -> None:
        """A timeout; nothing happens to a session that is gone."""
        if session in self._sums[plane, session[0]].table:
            self._statistics.injected["timeout"] += 1
        self._reduce(plane, session[0], reduction.Expire(session))

    def _reduce(self, plane: int, port: int, event: reduction.Event[Any]) -> None:
        before = len(self._sums[plane, port].table)
        self._sums[plane, port], outputs = reduction.step(self._sums[plane, port], event)
        after = len(self._sums[plane, port].table)
        if isinstance(event, reduction.Request) and after == before:
            self._counts["evictions"] += 1
            self._statistics.injected["evict"] += 1
        for out in outputs:
            request, one = self._requests[plane, cast(Session, out.session)]
            if isinstance(out, reduction.Partial):
                self._counts["partial sums"] += 1
                self._send_partial(plane, request, one, out)
            elif isinstance(out, reduction.Bypass):
                self._counts["bypassed"] += 1
                self._send_answer(plane, request, one, Command.RESPONSE, out.count, out.value, out.value.parts)
            else:
                op = Command.EXPLICIT_RESULT if one.mode == EXPLICIT else Command.RESULT
                # Gate gradients have no history; sums get one bracket more.
                parts = (("switch", out.value.parts),) if out.value.parts else ()
                self._send_answer(plane, request, one, op, out.count, out.value, parts)

    def _send_answer(self, plane: int, request: Packet, one: Instruction, op: Command, count: int, value: Value, parts: Any) -> None:
        fields: dict[str, Any] = {"stage": Stage.COMBINE, "count": count}
        if op == Command.EXPLICIT_RESULT:
            fields = {"further": request.further}
        packet = Packet(
            op,
            virtual_channel(op, int(request.channel) % 8),
            request.source,
            request.tag,
            request.attempt,
            request.dtype,
            request.address,
            payload=self._fmt.write(value.array, one.weights),
            **fields,
        )
        self._channels.send(False, request.source, plane, packet, parts)

    def _send_partial(self, plane: int, request: Packet, one: Instruction, out: reduction.Partial[Any]) -> None:
        parts = (("partial", out.value.parts),) if out.value.parts else ()
        data = self._fmt.write_sum(np.asarray(out.value.array))
        channel = virtual_channel(Command.PARTIAL, int(request.channel) % 8)
        for packet in partial_sums(request, data, out.count, channel):
            self._channels.send(False, request.source, plane, packet, parts)
