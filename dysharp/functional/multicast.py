"""The runtime API for kernel developers: create a dynamic multicast object, bind it, issue the two instructions, run the network.

No Program is needed. Every packet is really encoded and decoded (`isa`), every table is one of `protocol`. Source: spec/dysharp.md sections 3
(instructions), 6 (hub), 7 (API) and 8 (tracker); what the paper leaves open follows docs/design/0004. Integers come out the same in any order;
float sums are rounded in the order in which this seed lets packets arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError, EmulationMismatch, IsaError
from dysharp.functional.network.values import Format
from dysharp.functional.numbers import number
from dysharp.functional.orders import RandomPool
from dysharp.functional.packets.instructions import MAX_TAGS
from dysharp.isa.commands import RULES, Command, Dtype, Stage, virtual_channel
from dysharp.isa.packets import EXPERT_LIMIT, Packet, decode, encode, partial_sums
from dysharp.protocol import al_table, collect, reduction, tracker

Array = NDArray[Any]
Session = tuple[int, int, int]  # source, tag, attempt
PACKET_BYTES: Final = 128
ALIGN: Final = 16  # bytes; one flit, and the grain in which the tracker counts a row
MAX_TARGETS: Final = (1 << 15) - 1
MAX_GPUS, SPACE = 1 << 12, 1 << 47  # fields of a packet: source, address of a replica
TILE_ROWS, TLB_ENTRIES, TRACKER_ENTRIES, REDUCTION_ENTRIES = 128, 512, 1024, 256
NO_LIMIT = 1 << 30
ST, LD = RULES[Command.DYST].name, RULES[Command.DYLD].name


@dataclass(frozen=True, slots=True)
class DyMulticastObjectProp:
    """`bsize`: bytes of one block (a token vector). `stage`: region sets that share one mapping, 2 = Dispatch and Combine (spec section 7).

    With one stage, `dymultimem_ld_reduce` reads the region that `dymultimem_st` writes.
    """

    bsize: int
    stage: int = 2


@dataclass(slots=True, eq=False)
class Handle:
    """An instruction under way. `waiting`: its packets that are not complete."""

    name: str
    gpu: int
    result: Array
    waiting: int = 0

    @property
    def done(self) -> bool:
        return self.waiting == 0

    @property
    def value(self) -> Array:
        """The reduced vector (empty for a store). Raises EmulationMismatch before it is complete."""
        if self.waiting:
            raise EmulationMismatch(f"{self.name} on GPU {self.gpu}: found {self.waiting} packets under way, expected none (call run first)")
        return self.result


@dataclass(slots=True)
class _Bound:
    """An object on one GPU: memory by stage and local expert, AL Table and TLB, tracker."""

    memory: list[list[Array]]
    al: al_table.AlState
    ts: tracker.TrackerState
    ready: set[tracker.Tile] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Arrival:
    """A replica in a hub until all its `wanted` local targets are translated."""

    packet: Packet
    wanted: int
    places: dict[int, int] = field(default_factory=dict)  # local expert -> layout block


class DyMulticastObject:
    """One algebraic layout of `n_tokens` blocks, each at a power-of-two stride in multimem space. Made by `Device.create`."""

    def __init__(self, device: Device, prop: DyMulticastObjectProp, n_tokens: int, base: int, stride: int) -> None:
        self.device, self.prop, self.n_tokens, self.base, self.stride = device, prop, n_tokens, base, stride
        self.bound: dict[int, _Bound] = {}

    def address(self, token: int, offset: int = 0) -> int:
        """Multimem address of byte `offset` of block `token`; the instruction checks it."""
        return self.base + token * self.stride + offset

    def bind(self, gpu: int, nactive: Sequence[int]) -> None:
        """Give `gpu` memory for `nactive[e]` blocks of every local expert `e`, known from gating (`cuDyMulticastBindAddr`, spec section 7)."""
        d = self.device
        if not 0 <= gpu < d.n_gpus:
            raise ConfigError(f"bind gpu: found {gpu}, expected 0 .. {d.n_gpus - 1}")
        if gpu in self.bound:
            raise ConfigError(f"bind gpu: found GPU {gpu} bound already, expected one bind per GPU")
        if len(nactive) != d.experts_per_gpu or min(nactive) < 0:
            raise ConfigError(f"bind nactive on GPU {gpu}: found {list(nactive)}, expected {d.experts_per_gpu} counts of at least 0")
        columns = self.prop.bsize // d.number.bytes
        memory = [[d.number.poison((int(n), columns)) for n in nactive] for _ in range(self.prop.stage)]
        shape = tracker.Shape(TILE_ROWS, self.prop.bsize, tuple(int(n) for n in nactive))
        self.bound[gpu] = _Bound(memory, al_table.empty(d.experts_per_gpu, TLB_ENTRIES), tracker.empty(shape, TRACKER_ENTRIES))

    def memory(self, gpu: int, stage: int, local_expert: int) -> Array:
        """`[nactive, columns]` in layout order, the memory itself. Raises ConfigError for a GPU, stage or expert that has none."""
        there = self.bound.get(gpu)
        if there is None or not 0 <= stage < self.prop.stage or not 0 <= local_expert < self.device.experts_per_gpu:
            raise ConfigError(f"memory: found GPU {gpu}, stage {stage}, local expert {local_expert}, expected a bound GPU and what it holds")
        return there.memory[stage][local_expert]

    def layout(self, gpu: int, local_expert: int) -> list[int]:
        """Tokens of a local expert in the order of their blocks."""
        return list(self.bound[gpu].al.tables[local_expert])

    def home(self, token: int) -> int:
        """The GPU a token belongs to: tokens are dealt out in equal runs (spec section 14, decision 19)."""
        return token // -(-self.n_tokens // self.device.n_gpus)

    def is_ready(self, gpu: int, tile: tracker.Tile) -> bool:
        """Whether all rows of a tile (local expert, tile row) have arrived: the gate of GEMM-1."""
        return tile in self.bound[gpu].ready

    def gemm1_done(self, gpu: int, tile: tracker.Tile) -> None:
        """GEMM-1 of a tile is visible."""
        self.device._track(self, gpu, tracker.Gemm1Block(tile))

    def gemm2_done(self, gpu: int, tile: tracker.Tile) -> None:
        """GEMM-2 of a tile is visible: the homes of its tokens are notified."""
        self.device._track(self, gpu, tracker.Gemm2Block(tile))


class Device:
    """`n_gpus` GPUs under `planes` switch planes. Experts are numbered GPU by GPU; payloads are of one `dtype` (spec section 3 names none)."""

    def __init__(
        self,
        n_gpus: int,
        experts_per_gpu: int,
        *,
        planes: int = 18,
        seed: int = 0,
        dtype: str = "int32",
        reduction_entries: int = REDUCTION_ENTRIES,
    ) -> None:
        if not 1 <= n_gpus <= MAX_GPUS or experts_per_gpu < 1 or n_gpus * experts_per_gpu > EXPERT_LIMIT or planes < 1 or reduction_entries < 1:
            found = f"{n_gpus} GPUs, {experts_per_gpu} experts each, {planes} planes, {reduction_entries} reduction entries"
            raise ConfigError(f"Device: found {found}, expected 1 .. {MAX_GPUS} GPUs, 1 .. {EXPERT_LIMIT} experts in all, at least 1 of the others")
        self.n_gpus, self.experts_per_gpu, self.planes = n_gpus, experts_per_gpu, planes
        self.n_experts, self.number = n_gpus * experts_per_gpu, number(dtype)
        self.told: deque[tuple[int, int, int]] = deque()  # notices that have arrived: (GPU, token, expert)
        self.newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]] = deque()
        self.packets: Counter[str] = Counter()  # by kind, once per link they cross
        self._format = Format(self.number)
        self._pool = RandomPool(seed)
        self._queues: list[deque[Any]] = []
        self._names: list[tuple[Any, ...]] = []
        self._ids: dict[tuple[Any, ...], int] = {}
        self._objects: list[DyMulticastObject] = []
        self._sums: dict[tuple[int, int], reduction.ReductionState[Any]] = defaultdict(lambda: reduction.empty(reduction_entries))
        self._acks: dict[tuple[int, int], reduction.ReductionState[int]] = defaultdict(lambda: reduction.empty(NO_LIMIT))
        self._requests: dict[Session, Packet] = {}
        self._collects: list[collect.CollectState[Any]] = [collect.empty() for _ in range(n_gpus)]
        self._open: dict[Session, tuple[Handle, slice]] = {}
        self._halves: dict[Session, bytes] = {}
        self._next_tag = [0] * n_gpus

    def create(self, prop: DyMulticastObjectProp, n_tokens: int) -> DyMulticastObject:
        """A new object over all GPUs (`cuDyMulticastCreate`, spec section 7); bind it on every GPU that will be a target."""
        if prop.bsize < ALIGN or prop.bsize % ALIGN:
            raise ConfigError(f"create bsize: found {prop.bsize}, expected a positive multiple of {ALIGN}")
        if prop.stage not in (1, 2):
            raise ConfigError(f"create stage: found {prop.stage}, expected 1 or 2 (a packet has one stage bit)")
        stride = 1 << (prop.bsize - 1).bit_length()
        last = self._objects[-1] if self._objects else None
        base = -(-last.address(last.n_tokens) // stride) * stride if last else 0
        if n_tokens < 1 or base + n_tokens * stride > SPACE:
            raise ConfigError(f"create n_tokens: found {n_tokens}, expected 1 .. {(SPACE - base) // stride}")
        self._objects.append(DyMulticastObject(self, prop, n_tokens, base, stride))
        return self._objects[-1]

    # ---- instructions ----------------------------------------------------------------------------------------------------------

    def dymultimem_st(self, gpu: int, obj: DyMulticastObject, address: int, data: Array, targets: Sequence[int]) -> Handle:
        """Store `data` at every target's own place of the block at `address` (spec section 3). Needs whole 16 B vectors inside one block."""
        self._check_gpu(ST, gpu)
        if data.dtype != self.number.stored:
            raise IsaError(f"{ST} data on GPU {gpu}: found dtype {data.dtype}, expected {self.number.name}")
        if data.ndim != 1:
            raise IsaError(f"{ST} data on GPU {gpu}: found shape {data.shape}, expected one dimension")
        self._check(ST, gpu, obj, address, data.size, targets)
        handle = Handle(ST, gpu, np.zeros(0, self.number.stored))
        self._issue(handle, Command.DYST, obj, address, data.tobytes(), targets)
        return handle

    def dymultimem_ld_reduce(self, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int]) -> Handle:
        """Read `n_elements` from every target's place of the block and add them up, without weights (spec section 3)."""
        self._check_gpu(LD, gpu)
        self._check(LD, gpu, obj, address, n_elements, targets)
        handle = Handle(LD, gpu, np.zeros(n_elements, self.number.stored))
        self._issue(handle, Command.DYLD, obj, address, bytes(n_elements * self.number.bytes), targets)
        return handle

    def notify(self, gpu: int, home: int, token: int, expert: int) -> None:
        """Tell GPU `home` that `expert` has finished `token`; it arrives in `told` (spec section 8)."""
        packet = Packet(Command.NOTIFY, virtual_channel(Command.NOTIFY), gpu, 0, token=token, expert=expert)
        self._send(("hub", gpu, -1) if gpu == home else ("up", gpu, token % self.planes), packet, home)

    def _check_gpu(self, name: str, gpu: int) -> None:
        if not 0 <= gpu < self.n_gpus:
            raise IsaError(f"{name} gpu: found GPU {gpu}, expected 0 .. {self.n_gpus - 1}")

    def _check(self, name: str, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int]) -> None:
        """Operands in the order r1 .. r4."""
        n_bytes = n_elements * self.number.bytes
        if n_bytes < ALIGN or n_bytes % ALIGN:
            raise IsaError(f"{name} data on GPU {gpu}: found shape ({n_elements},), expected whole {ALIGN} B vectors")
        if obj.device is not self:
            raise IsaError(f"{name} object on GPU {gpu}: found one of another device, expected one of this device")
        if address % ALIGN:
            raise IsaError(f"{name} address on GPU {gpu}: found {address:#x}, expected a multiple of {ALIGN}")
        if not obj.base <= address < obj.address(obj.n_tokens):
            raise IsaError(f"{name} address on GPU {gpu}: found {address:#x}, expected {obj.base:#x} .. {obj.address(obj.n_tokens) - 1:#x}")
        end = (address - obj.base) % obj.stride + n_bytes
        if end > obj.prop.bsize:
            raise IsaError(f"{name} data on GPU {gpu}: found an end at byte {end} of the block, expected at most bsize = {obj.prop.bsize}")
        if len(targets) > MAX_TARGETS:
            raise IsaError(f"{name} target count on GPU {gpu}: found {len(targets)}, expected at most {MAX_TARGETS}")
        for target, times in Counter(targets).items():
            if not 0 <= target < self.n_experts:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target}, expected 0 .. {self.n_experts - 1}")
            if times > 1:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target} {times} times, expected distinct experts")
            if target // self.experts_per_gpu not in obj.bound:
                where = target // self.experts_per_gpu
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target} on GPU {where}, expected a GPU where the object is bound")

    def _issue(self, handle: Handle, op: Command, obj: DyMulticastObject, address: int, data: bytes, targets: Sequence[int]) -> None:
        """One packet per 128 B; the targets on the own GPU are served in its hub. An empty list is complete."""
        gpu, store = handle.gpu, op == Command.DYST
        listed = tuple(int(t) for t in targets if t // self.experts_per_gpu != gpu)
        near = sorted(int(t) % self.experts_per_gpu for t in targets if t // self.experts_per_gpu == gpu)
        for start in range(0, len(data) if targets else 0, PACKET_BYTES):
            part = data[start : start + PACKET_BYTES]
            session = (gpu, self._tag(gpu), 0)
            first = start // self.number.bytes
            self._open[session] = (handle, slice(first, first + len(part) // self.number.bytes))
            handle.waiting += 1
            self._collects[gpu], _ = collect.step(self._collects[gpu], collect.Open(session, len(targets)))
            packet = Packet(
                op,
                virtual_channel(op),
                *session,
                self._format.dtype(False),
                address + start,
                Stage.DISPATCH if store else Stage(obj.prop.stage - 1),
                listed,
                wanted_bytes=0 if store else len(part),
                payload=part if store else b"",
            )
            if listed:
                self._send(("up", gpu, self._plane(packet.address)), packet)
            if near:
                self._send(("hub", gpu, -1), self._replica(packet, near))

    def _tag(self, gpu: int) -> int:
        tag = self._next_tag[gpu]
        if (gpu, tag, 0) in self._open:
            raise IsaError(f"tag on GPU {gpu}: found {MAX_TAGS} packets under way, expected fewer (call run first)")
        self._next_tag[gpu] = (tag + 1) % MAX_TAGS
        return tag

    def _replica(self, request: Packet, local: list[int]) -> Packet:
        op = Command.DYST_REPLICA if request.op == Command.DYST else Command.DYLD_REPLICA
        return replace(request, op=op, channel=virtual_channel(op), targets=tuple(local), local_experts=self.experts_per_gpu)

    # ---- network ---------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver until nothing is left. Raises EmulationMismatch naming what waits if an instruction is not complete then."""
        while self.step():
            pass
        if self._open:
            named = [f"{h.name} tag {tag} on GPU {gpu}" for (gpu, tag, _), (h, _) in list(self._open.items())[:3]]
            raise EmulationMismatch(f"run: found {len(self._open)} packets that never complete ({', '.join(named)}), expected none")

    def step(self) -> bool:
        """The head of one channel, chosen at random, arrives. False if nothing is left."""
        if not len(self._pool):
            return False
        _, ident = self._pool.pop()
        (place, gpu, plane, *_), queue = self._names[ident], self._queues[ident]
        data, route = queue.popleft()
        if queue:
            self._pool.add((0, ident))
        if place == "memory":
            self._al_step(route, gpu, al_table.MemoryAnswer(data))
            return True
        packet = decode(data, local_experts=self.experts_per_gpu, experts=self.n_experts)
        if place == "up":
            self._switch(plane, packet, route)
        elif packet.op in (Command.DYST_REPLICA, Command.DYLD_REPLICA):
            self._arrive(gpu, packet)
        elif packet.op == Command.NOTIFY:
            self.told.append((gpu, packet.token, packet.expert))
        else:
            self._answered(packet)
        return True

    def _put(self, name: tuple[Any, ...], flight: tuple[Any, Any]) -> None:
        ident = self._ids.setdefault(name, len(self._queues))
        if ident == len(self._queues):
            self._queues.append(deque())
            self._names.append(name)
        self._queues[ident].append(flight)
        if len(self._queues[ident]) == 1:
            self._pool.add((0, ident))

    def _send(self, wire: tuple[str, int, int], packet: Packet, route: int = -1) -> None:
        self.packets[RULES[packet.op].name] += wire[0] != "hub"
        self._put((*wire, int(packet.channel)), (encode(packet, experts=self.n_experts), route))

    def _plane(self, address: int) -> int:
        _, token, offset = self._locate(address)
        return (token + offset // PACKET_BYTES) % self.planes

    def _locate(self, address: int) -> tuple[DyMulticastObject, int, int]:
        """Object, block and byte of a multimem address (spec section 6, MV translation)."""
        obj = self._objects[bisect_right(self._objects, address, key=lambda o: o.base) - 1]
        return obj, *divmod(address - obj.base, obj.stride)

    # ---- switch ----------------------------------------------------------------------------------------------------------------

    def _switch(self, plane: int, packet: Packet, route: int) -> None:
        """Requests replicate, one copy per GPU; answers go through the table of the port to their source (design 0004, Blocks)."""
        session, port = (packet.source, packet.tag, packet.attempt), (plane, packet.source)
        if packet.op == Command.NOTIFY:
            self._send(("down", route, plane), packet)
        elif packet.op == Command.ACK:
            self._acks[port], outs = reduction.step(self._acks[port], reduction.Response(session, packet.count, 0))
            for out in outs:
                self._answer(plane, Command.MERGED_ACK, self._requests[session], out.count)
        elif packet.op == Command.RESPONSE:
            self._reduce(port, reduction.Response(session, packet.count, self._format.read(packet.payload)))
        else:
            self._requests[session] = packet
            if packet.op == Command.DYST:
                self._acks[port], _ = reduction.step(self._acks[port], reduction.Request(session, len(packet.targets)))
            else:
                self._reduce(port, reduction.Request(session, len(packet.targets)))
            by_gpu: dict[int, list[int]] = defaultdict(list)
            for target in sorted(packet.targets):
                by_gpu[target // self.experts_per_gpu].append(target % self.experts_per_gpu)
            for gpu, local in by_gpu.items():
                self._send(("down", gpu, plane), self._replica(packet, local))

    def _reduce(self, port: tuple[int, int], event: reduction.Event[Any]) -> None:
        self._sums[port], outputs = reduction.step(self._sums[port], event)
        for out in outputs:
            request = self._requests[out.session]  # type: ignore[index]
            if isinstance(out, reduction.Partial):
                sums = self._format.write_sum(np.asarray(out.value))
                for packet in partial_sums(request, sums, out.count, virtual_channel(Command.PARTIAL)):
                    self._send(("down", request.source, port[0]), packet)
                continue
            op = Command.RESULT if isinstance(out, reduction.Result) else Command.RESPONSE
            self._answer(port[0], op, request, out.count, self._format.write(np.asarray(out.value)))

    def _answer(self, plane: int, op: Command, request: Packet, count: int, payload: bytes = b"") -> None:
        self._send(("down", request.source, plane), _answer_to(request, op, count, payload))

    # ---- destination hub -------------------------------------------------------------------------------------------------------

    def _arrive(self, gpu: int, replica: Packet) -> None:
        """A replica asks for the place of its block in every local expert."""
        obj, token, _ = self._locate(replica.address)
        arrival = _Arrival(replica, len(replica.targets))
        for e in replica.targets:
            self._al_step(obj, gpu, al_table.Lookup((e, token), arrival, allocate=replica.op == Command.DYST_REPLICA))

    def _al_step(self, obj: DyMulticastObject, gpu: int, event: al_table.Event) -> None:
        there = obj.bound[gpu]
        there.al, outputs = al_table.step(there.al, event)
        for out in outputs:
            if isinstance(out, al_table.ReadTable):
                self._put(("memory", gpu, -1, *out.key), (out.key, obj))
            elif isinstance(out, al_table.Allocated):
                self._allocated(obj, gpu, *out.key, out.layout)
            elif isinstance(out, al_table.Unbound):
                expert = gpu * self.experts_per_gpu + out.key[0]
                where = f"expert {expert} of block {out.key[1]}"
                raise IsaError(f"{LD} targets on GPU {out.packet.packet.source}: found {where}, expected one that {ST} wrote")  # type: ignore[attr-defined]
            elif isinstance(out, al_table.Found):
                self._found(obj, gpu, out)

    def _allocated(self, obj: DyMulticastObject, gpu: int, local: int, token: int, layout: int) -> None:
        there = obj.bound[gpu]
        n_active = there.ts.shape.n_active[local]
        if layout >= n_active:
            expert = gpu * self.experts_per_gpu + local
            raise IsaError(f"{ST} region of expert {expert} on GPU {gpu}: found {layout + 1} blocks, expected at most nactive = {n_active}")
        self._track(obj, gpu, tracker.Bind(local, layout, token))

    def _found(self, obj: DyMulticastObject, gpu: int, out: al_table.Found) -> None:
        arrival: _Arrival = out.packet  # type: ignore[assignment]
        arrival.places[out.key[0]] = out.layout
        if len(arrival.places) < arrival.wanted:
            return
        packet, there = arrival.packet, obj.bound[gpu]
        _, _, offset = self._locate(packet.address)
        first = offset // self.number.bytes
        memory, places = there.memory[packet.stage], sorted(arrival.places.items())
        if packet.op == Command.DYST_REPLICA:
            data = np.frombuffer(packet.payload, self.number.stored)
            for e, block in places:
                memory[e][block, first : first + len(data)] = data
                for start in range(offset, offset + len(packet.payload), ALIGN):
                    self._track(obj, gpu, tracker.Store(e, block, start // ALIGN, ALIGN))
            answer = _answer_to(packet, Command.ACK, len(places))
        else:
            columns = slice(first, first + packet.wanted_bytes // self.number.bytes)
            rows = [self.number.load(memory[e][block, columns]) for e, block in places]
            answer = _answer_to(packet, Command.RESPONSE, len(places), self._format.write(sum(rows[1:], rows[0])))
        if packet.source == gpu:
            self._answered(answer)
        else:
            self._send(("up", gpu, self._plane(packet.address)), answer)

    def _track(self, obj: DyMulticastObject, gpu: int, event: tracker.Event) -> None:
        there = obj.bound[gpu]
        there.ts, outputs = tracker.step(there.ts, event)
        for out in outputs:
            if isinstance(out, tracker.TileReady):
                there.ready.add(out.tile)
                self.newly_ready.append((obj, gpu, out.tile))
            elif isinstance(out, tracker.Notify):
                self.notify(gpu, obj.home(out.token), out.token, gpu * self.experts_per_gpu + out.expert)

    # ---- source ----------------------------------------------------------------------------------------------------------------

    def _answered(self, packet: Packet) -> None:
        """A piece of an answer; the counts say when it is whole."""
        session, data = (packet.source, packet.tag, packet.attempt), packet.payload
        handle, columns = self._open[session]
        if packet.op == Command.PARTIAL:
            # An unrounded sum can be longer than the packet it is for: its parts come one after the other.
            data = self._halves.pop(session, b"") + data
            if len(data) < (columns.stop - columns.start) * self._format.scalar.itemsize:
                self._halves[session] = data
                return
            value: Any = self._format.read_sum(data)
        else:
            value = self._format.read(data) if data else 0
        self._collects[packet.source], outputs = collect.step(self._collects[packet.source], collect.Piece(session, 0, packet.count, value))
        for out in outputs:
            if data and isinstance(out, collect.Complete):
                handle.result[columns] = self.number.store(out.value)
            handle.waiting -= 1
            del self._open[session]
            self._requests.pop(session, None)


def _answer_to(request: Packet, op: Command, count: int, payload: bytes = b"") -> Packet:
    """`count` targets of `request` answer."""
    session, dtype = (request.source, request.tag, request.attempt), request.dtype if payload else Dtype.NONE
    return Packet(op, virtual_channel(op), *session, dtype, request.address, request.stage, count=count, payload=payload)
