"""Turns instructions of the runtime API into transactions, and locates their blocks in bound memory."""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from dysharp.base.arrays import Array
from dysharp.base.errors import EmulationMismatch, IsaError
from dysharp.functional.faults import Faults
from dysharp.functional.multicast import ALIGN, DyMulticastObject, is_whole, show
from dysharp.functional.network.core import Network
from dysharp.functional.network.hub_tables import HubTables, Place
from dysharp.functional.network.messages import Value, WireFormat, hub_sum
from dysharp.functional.network.queues import Rules
from dysharp.functional.network.transaction import MAX_TAGS, PACKET_BYTES, Transaction
from dysharp.functional.numbers import Number
from dysharp.functional.orders import Pool
from dysharp.isa.commands import Command, Stage
from dysharp.isa.packets import Packet


@dataclass(slots=True, eq=False)
class Handle:
    """An issued instruction on GPU `gpu`. `waiting`: number of its packets that are not complete."""

    name: str
    gpu: int
    result: Array
    waiting: int = 0

    @property
    def done(self) -> bool:
        """Whether all packets of the instruction are complete."""
        return self.waiting == 0

    @property
    def value(self) -> Array:
        """`[n_elements]` of the device's dtype: the reduced vector; `[0]` for a store.

        Raises EmulationMismatch before the instruction is complete.
        """
        if self.waiting:
            raise EmulationMismatch(f"{self.name} on GPU {self.gpu}: found {self.waiting} packets under way, expected none (call run first)")
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class _PacketShare(Transaction):
    """The share of one packet in an instruction.

    `data`: payload of a store. `columns`: elements of the result that the load fills.
    """

    handle: Handle
    obj: DyMulticastObject
    data: bytes
    columns: slice


class IssueUnit:
    """The driver of a device's network, for instructions without a Program.

    `told`: receives each notification as (GPU, token, expert).
    """

    def __init__(
        self, n_gpus: int, experts_per_gpu: int, planes: int, pool: Pool, number: Number, reduction_entries: int,
        told: deque[tuple[int, int, int]], rules: Rules,
    ) -> None:  # fmt: skip
        self.experts_per_gpu, self.n_experts, self.planes, self.number = experts_per_gpu, n_gpus * experts_per_gpu, planes, number
        self.objects: list[DyMulticastObject] = []  # by base address
        self._told, self._next_tag = told, [0] * n_gpus
        self._open = [0] * n_gpus
        self._behind: list[deque[Callable[[], None] | None]] = [deque() for _ in range(n_gpus)]
        self.network: Network[_PacketShare] = Network(
            self, pool, WireFormat(number), n_gpus=n_gpus, experts_per_gpu=experts_per_gpu, reduction_entries=reduction_entries,
            faults=Faults(), rules=rules,
        )  # fmt: skip

    def check(self, name: str, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int]) -> int:
        """The address as an int. Raises IsaError for the first wrong operand, in the order r1 .. r4 of the instruction."""
        n_bytes = n_elements * self.number.bytes
        if n_bytes < ALIGN or n_bytes % ALIGN:
            raise IsaError(f"{name} data on GPU {gpu}: found shape ({n_elements},), expected whole {ALIGN} B vectors")
        if not isinstance(obj, DyMulticastObject):
            raise IsaError(f"{name} object on GPU {gpu}: found {type(obj).__name__}, expected a DyMulticastObject")
        if obj.device.network is not self.network:
            raise IsaError(f"{name} object on GPU {gpu}: found one of another device, expected one of this device")
        if not is_whole(address):
            raise IsaError(f"{name} address on GPU {gpu}: found {show(address)}, expected an integer (obj.address(token))")
        address = index(address)
        if address % ALIGN:
            raise IsaError(f"{name} address on GPU {gpu}: found {address:#x}, expected a multiple of {ALIGN}")
        if not obj.base <= address < obj.address(obj.n_tokens):
            raise IsaError(f"{name} address on GPU {gpu}: found {address:#x}, expected {obj.base:#x} .. {obj.address(obj.n_tokens) - 1:#x}")
        end = (address - obj.base) % obj.stride + n_bytes
        if end > obj.prop.bsize:
            raise IsaError(f"{name} data on GPU {gpu}: found an end at byte {end} of the block, expected at most bsize = {obj.prop.bsize}")
        for target, times in Counter(targets).items():
            holder = target // self.experts_per_gpu
            if not 0 <= target < self.n_experts:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target}, expected 0 .. {self.n_experts - 1}")
            if times > 1:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target} {times} times, expected distinct experts")
            if holder not in obj.bound:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target} on GPU {holder}, expected a GPU where the object is bound")
        return address

    def issue(self, handle: Handle, obj: DyMulticastObject, address: int, data: bytes | None, n_bytes: int, targets: Sequence[int]) -> None:
        """Issue one transaction per 128 B, behind the fences of `gpu`. The hub of `gpu` serves the targets on that GPU itself.

        `data` None: a load. An instruction without targets is complete at once.
        """
        handle.waiting = -(-n_bytes // PACKET_BYTES) if targets else 0
        self.leave(handle.gpu, lambda: self._send(handle, obj, address, data, n_bytes if targets else 0, targets))

    def fence(self, gpu: int) -> None:
        """What `gpu` issues from here on leaves when all that it issued before is done."""
        if self.network.rules.fence:
            self.leave(gpu, None)

    def leave(self, gpu: int, act: Callable[[], None] | None) -> None:
        """`act` now, or behind the fences of `gpu` that wait; None: a fence."""
        self._behind[gpu].append(act)
        self._go_on(gpu)

    def _go_on(self, gpu: int) -> None:
        while self._behind[gpu] and (self._behind[gpu][0] is not None or not self._open[gpu]):
            if (act := self._behind[gpu].popleft()) is not None:
                act()

    def _send(self, handle: Handle, obj: DyMulticastObject, address: int, data: bytes | None, n_bytes: int, targets: Sequence[int]) -> None:
        gpu = handle.gpu
        listed = tuple(t for t in targets if t // self.experts_per_gpu != gpu)
        near = tuple(sorted(t % self.experts_per_gpu for t in targets if t // self.experts_per_gpu == gpu))
        for start in range(0, n_bytes, PACKET_BYTES):
            size, first = min(PACKET_BYTES, n_bytes - start), start // self.number.bytes
            part = _PacketShare(
                source=gpu, tag=self._tag(gpu), plane=self._plane(address + start), address=address + start,
                command=Command.DYLD if data is None else Command.DYST, dtype=WireFormat(self.number).payload, n_bytes=size,
                stage=Stage.DISPATCH if data is not None else Stage(obj.prop.stage - 1), targets=listed, near=near, n_far=len(listed),
                n_near=len(near), handle=handle, obj=obj, data=b"" if data is None else data[start : start + size],
                columns=slice(first, first + size // self.number.bytes),
            )  # fmt: skip
            self._open[gpu] += self._counts(part)
            handle.waiting -= not self._counts(part)
            self.network.open(part)
            if listed:
                self.network.request(part, part.data)
            if near:
                self.network.local(part, 0, lane=0)

    def _counts(self, t: _PacketShare) -> bool:
        """Whether `handle` and fences wait for `t`."""
        return t.pull or self.network.rules.done

    def _tag(self, gpu: int) -> int:
        tag = self._next_tag[gpu]
        if self.network.is_open(gpu, tag):
            raise IsaError(f"tag on GPU {gpu}: found {MAX_TAGS} packets under way, expected fewer (call run first)")
        self._next_tag[gpu] = (tag + 1) % MAX_TAGS
        return tag

    def _plane(self, address: int) -> int:
        _, token, offset = self._locate(address)
        return (token + offset // PACKET_BYTES) % self.planes

    def _locate(self, address: int) -> tuple[DyMulticastObject, int, int]:
        """(object, block, byte in the block) of a multimem address."""
        obj = self.objects[bisect_right(self.objects, address, key=lambda o: o.base) - 1]
        return obj, *divmod(address - obj.base, obj.stride)

    # ---- calls of the network (network.Driver) -----------------------------------------------------------------------

    def locate(self, gpu: int, address: int) -> tuple[HubTables, int]:
        obj, block, _ = self._locate(address)
        return obj.bound[gpu].tables, block

    def store(self, t: _PacketShare, gpu: int, places: list[Place] | None, packet: Packet | None) -> None:
        data = np.frombuffer(t.data if packet is None else packet.payload, self.number.stored)
        t.obj.bound[gpu].store(t.stage, self._locate(t.address)[2], data, places or [])

    def load(self, t: _PacketShare, gpu: int, places: list[Place] | None, packet: Packet | None) -> Value:
        first, memory = self._locate(t.address)[2] // self.number.bytes, t.obj.bound[gpu].memory[t.stage]
        rows = [memory[e][block, first : first + t.elements] for e, block in places or []]
        unwritten = self.number.poison((ALIGN // self.number.bytes,))
        for row, (e, _) in zip(rows, places or [], strict=True):
            if self.network.rules.trap and (row.reshape(-1, len(unwritten)).view(np.uint8) == unwritten.view(np.uint8)).all(axis=1).any():
                found = f"stage {t.stage} of expert {gpu * self.experts_per_gpu + e} unwritten for block {self._locate(t.address)[1]}"
                raise IsaError(f"{t.handle.name} targets on GPU {t.source}: found {found}, expected a write before the load")
        return Value(hub_sum(rows, t.elements, self.number), ())

    def complete(self, t: _PacketShare, value: Value) -> None:
        if t.pull:
            t.handle.result[t.columns] = self.number.store(value.array)
        self.network.close(t)
        if self._counts(t):
            t.handle.waiting -= 1
            self._open[t.source] -= 1
            self._go_on(t.source)

    def arrived(self, gpu: int, packet: Packet) -> None:
        self._told.append((gpu, packet.token, packet.expert))
