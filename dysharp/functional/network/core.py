"""The network: everything between the issue of a transaction and its last answer. Its drivers own the GPUs' memory.

Every packet is encoded and decoded (`isa`), and every table is a block of `protocol`. Blocks and decisions: docs/design/0004.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from dysharp.functional.faults import Faults
from dysharp.functional.network.hub_tables import HubTables, Place, TablesOwner
from dysharp.functional.network.messages import NOTHING, Value, WireFormat, answer, request
from dysharp.functional.network.queues import Rules, Wire
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.switching import Port, Switch, session_of
from dysharp.functional.network.transaction import Session, T, Transaction
from dysharp.functional.network.wires import LOCAL, PacketWires
from dysharp.functional.orders import Pool
from dysharp.isa.commands import RULES, Command, virtual_channel
from dysharp.isa.packets import Packet
from dysharp.protocol import collect
from dysharp.protocol.al_table import AlState, Key
from dysharp.protocol.tracker import TrackerState

# Kinds of events in the pool, after those of `PacketWires`. MEMORY: a miss is answered; EXPIRE: a session times out; LIST: a target list
# arrives; RETRY: a request is sent again.
MEMORY, EXPIRE, LIST, RETRY, N_KINDS = range(LOCAL + 1, LOCAL + 6)
ANSWERS = frozenset(op for op, rule in RULES.items() if rule.answer)
T_contra = TypeVar("T_contra", bound=Transaction, contravariant=True)


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


class Driver(Protocol[T_contra]):
    """Issues transactions, owns the memory behind the hubs, and receives complete transactions."""

    def locate(self, gpu: int, address: int) -> tuple[HubTables, int]:
        """(tables on `gpu` that translate a multimem address, block of the address)."""

    def store(self, t: T_contra, gpu: int, places: list[Place] | None, packet: Packet | None) -> None:
        """Write a copy on `gpu`. `places`: None if software on `gpu` knows the rows. `packet`: None for the copy of the source GPU."""

    def load(self, t: T_contra, gpu: int, places: list[Place] | None, packet: Packet | None) -> Value:
        """The rounded sum that `gpu` answers. Arguments as of `store`."""

    def complete(self, t: T_contra, value: Value) -> None:
        """All contributions of `t` have arrived. `value`: their unrounded sum."""

    def arrived(self, gpu: int, packet: Packet) -> None:
        """A packet that nobody answers, such as a notification, has arrived at `gpu`."""


class Network(PacketWires, Generic[T]):
    """`n_gpus` hubs and sources under switch planes: links that carry transactions, too. `pool` chooses the next event."""

    def __init__(
        self,
        driver: Driver[T],
        pool: Pool,
        fmt: WireFormat,
        *,
        n_gpus: int,
        experts_per_gpu: int,
        reduction_entries: int,
        faults: Faults,
        follows: Callable[[Packet], bool] | None = None,
        rules: Rules = Rules(),  # noqa: B008 (a frozen value)
    ) -> None:
        super().__init__(pool, driver.arrived, experts_per_gpu=experts_per_gpu, n_experts=n_gpus * experts_per_gpu, follows=follows, rules=rules)
        self.n_gpus, self._driver, self._fmt, self._faults = n_gpus, driver, fmt, faults
        self._switch: Switch[T] = Switch(reduction_entries, experts_per_gpu, fmt, self.statistics, self._send_down, self._session_opened)
        self._sources: Sources[T] = Sources(n_gpus, fmt, self.statistics)
        self._transactions: dict[tuple[int, int], T] = {}
        self.on(MEMORY, self._memory)
        self.on(EXPIRE, lambda what: self._switch.expire(*what))

    # ---- events ------------------------------------------------------------------------------------------------------

    def tables(self, gpu: int, al: AlState, ts: TrackerState, owner: TablesOwner) -> HubTables:
        """Tables of `gpu` in front of the memory of `owner`."""
        return HubTables(gpu, al, ts, owner, self._miss, self.statistics)

    def _miss(self, tables: HubTables, key: Key) -> None:
        """A lookup missed the TLB: memory will answer."""
        self._queues.put((MEMORY, (tables.gpu, *key)), tables)

    def _memory(self, what: tuple[int, int, int]) -> None:
        self.statistics.injected["first-touch"] += self._faults.late_memory
        self._queues.take((MEMORY, what)).memory_answers(what[1:])

    def _session_opened(self, port: Port, session: Session) -> None:
        if self._faults.timeouts:
            self.pool.add((EXPIRE, (port, session)))

    # ---- calls of drivers --------------------------------------------------------------------------------------------

    def open(self, t: T) -> None:
        """Open `t` and take its tag."""
        self._transactions[t.source, t.tag] = t
        self._sources.open(t)

    def close(self, t: T) -> None:
        """Free the tag of `t`, which has no packet in flight."""
        del self._transactions[t.source, t.tag]
        self._switch.forget((t.source, t.tag, 0))

    def is_open(self, source: int, tag: int) -> bool:
        """Whether a tag is taken."""
        return (source, tag) in self._transactions

    def under_way(self) -> Iterator[T]:
        """Transactions that are open, oldest first."""
        yield from self._transactions.values()

    def request(self, t: T, payload: bytes, attempt: int = 0, lane: int = 0) -> None:
        """The request of `t` leaves for its switch plane, on virtual channel `lane`. `payload`: b"" for a pull."""
        packet = request(t, attempt, lane, payload)
        self._send(Wire(True, t.source, t.plane, int(packet.channel)), packet, due=t.due)

    def local(self, t: T, attempt: int, lane: Any) -> None:
        """Send the copy of the source GPU to its own hub, without a packet. Copies of one `lane` stay in order."""
        at_hub = partial(self._at_hub, t, t.source, t.address, t.near, partial(self._serve_own, t, attempt))
        self._queues.put((LOCAL, (t.source, lane)), at_hub, t.due)

    def notify(self, gpu: int, home: int, token: int, expert: int, plane: int, tag: int, lane: Any = 0) -> None:
        """`gpu` tells `home` that `expert` has finished `token`; between two GPUs as a packet through `plane`."""
        packet = Packet(Command.NOTIFY, virtual_channel(Command.NOTIFY), gpu, tag, token=token, expert=expert)
        self.post(packet, home, plane, lane)

    # ---- wires -------------------------------------------------------------------------------------------------------

    def _send_down(self, gpu: int, plane: int, packet: Packet, history: Any, t: T) -> None:
        self._send(Wire(False, gpu, plane, int(packet.channel)), packet, history=history, due=t.due)

    def _routed(self, wire: Wire, packet: Packet, history: Any) -> None:
        t = self._transactions[packet.source, packet.tag]
        if wire.up:
            self._switch.handle(wire.plane, packet, history, t)
        elif packet.op in ANSWERS:
            self._completed(t, self._sources.arrive(t, packet, history))
        else:
            self._at_hub(t, wire.gpu, packet.address, packet.targets, partial(self._serve, t, wire.gpu, packet))

    # ---- hubs --------------------------------------------------------------------------------------------------------

    def _at_hub(self, t: T, gpu: int, address: int, targets: tuple[int, ...], serve: Callable[[list[Place] | None], None]) -> None:
        """Serve a copy of a request when the places of all its targets are known."""
        if t.dynamic:
            tables, block = self._driver.locate(gpu, address)
            tables.look_up(t, targets, block, serve)
        else:
            serve(None)

    def _serve(self, t: T, gpu: int, packet: Packet, places: list[Place] | None) -> None:
        """Serve a request, and answer it."""
        value = self._reach(t, gpu, places, packet)
        count, address = (1, t.block) if places is None else (len(places), -1)
        data = self._fmt.write(value.array, t.answer or packet.dtype) if t.pull else b""
        reply = answer(packet, Command.RESPONSE if t.pull else Command.ACK, count, data, address, t.answer)
        self._send(Wire(True, gpu, t.plane, int(reply.channel)), reply, history=value.parts, due=t.due)

    def _serve_own(self, t: T, attempt: int, places: list[Place] | None) -> None:
        """Serve the copy of the source GPU, which nobody answers."""
        self._completed(t, self._sources.add(t, attempt, t.n_near, self._reach(t, t.source, places, None)))

    def _reach(self, t: T, gpu: int, places: list[Place] | None, packet: Packet | None) -> Value:
        """Load from the memory of `gpu`, or store there."""
        if t.pull:
            return self._driver.load(t, gpu, places, packet)
        self._driver.store(t, gpu, places, packet)
        return NOTHING

    def _completed(self, t: T, value: Value | None) -> None:
        if value is not None:
            self._driver.complete(t, value)
