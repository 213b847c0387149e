"""The runtime API for kernel developers: create and bind multicast objects, issue the two instructions, run.

No Program is needed: a `Device` drives the network of the functional machine directly.

| step | call | paper (DySHARP, arXiv 2605.05607, section III) |
|---|---|---|
| 1 | `Device(n_gpus, experts_per_gpu)` | - |
| 2 | `obj = device.create(DyMulticastObjectProp(bsize, stage), n_tokens)` | `cuDyMulticastCreate`, Fig. 11 |
| 3 | `obj.bind(gpu, nactive)` for every GPU | `cuDyMulticastBindAddr`, Fig. 11 |
| 4 | `device.dymultimem_st(...)`, then `device.run()`: Dispatch | instruction `dymultimem.st` |
| 5 | the experts read `obj.memory(gpu, 0, local_expert)` and write `obj.memory(gpu, 1, local_expert)` | token tracker, Fig. 13 |
| 6 | `device.dymultimem_ld_reduce(...)`, then `device.run()`: Combine | instruction `dymultimem.ld_reduce` |

What instructions order, and `fence`: docs/memory-model.md.

`dysharp.functional.multicast` says what a block, a stage, a tile, a local expert and a bound GPU are. Integers may be of
Python or of NumPy. Integer results do not depend on the order of packets; float sums are rounded in the order in which
the seed lets packets arrive. Decisions where the paper is silent: docs/design/0004.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final

import numpy as np

from dysharp.base import Array, ConfigError, EmulationMismatch, IsaError, Numbers, frozen_keywords
from dysharp.functional.faults import Faults
from dysharp.functional.multicast import ALIGN, LD, ST, TILE_ROWS, DyMulticastObject, DyMulticastObjectProp, is_whole, show, whole
from dysharp.functional.network.core import Network
from dysharp.functional.network.hub_tables import HubTables, Place
from dysharp.functional.network.messages import Value, WireFormat, hub_sum
from dysharp.functional.network.queues import Rules
from dysharp.functional.network.transaction import MAX_TAGS, PACKET_BYTES, Transaction
from dysharp.functional.numbers import Number, number
from dysharp.functional.orders import Pool, RandomPool
from dysharp.isa.commands import Command, Stage
from dysharp.isa.packets import EXPERT_LIMIT, Packet
from dysharp.protocol import tracker
from dysharp.specs.arguments import fitting

__all__ = ["ALIGN", "TILE_ROWS", "Device", "DyMulticastObject", "DyMulticastObjectProp", "Handle"]

MAX_GPUS, SPACE = 1 << 12, 1 << 47  # fields of a packet: source, address of a replica
MAX_TOKENS, MAX_ELEMENTS = 1 << 32, 1 << 48  # field of a notification; more than any block has
REDUCTION_ENTRIES: Final = 256
MAX_TARGETS: Final = (1 << 15) - 1  # the target count of a packet


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


@frozen_keywords
class _PacketShare(Transaction):
    """The share of one packet in an instruction.

    `data`: payload of a store. `columns`: elements of the result that the load fills.
    """

    handle: Handle
    obj: DyMulticastObject
    data: bytes
    columns: slice


class _IssueUnit:
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
            _, token, offset = self._locate(address + start)
            part = _PacketShare(
                source=gpu, tag=self._tag(gpu), plane=(token + offset // PACKET_BYTES) % self.planes, address=address + start,
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


class Device:
    """`n_gpus` GPUs with `experts_per_gpu` experts each under `planes` switch planes; experts are numbered GPU by GPU.

    Expert `e` is local expert `e % experts_per_gpu` of GPU `e // experts_per_gpu`.

    | argument | meaning |
    |---|---|
    | `n_gpus` | GPUs, 1 .. 4096 |
    | `experts_per_gpu` | experts of each GPU; at most 65536 in all |
    | `planes` | switch planes, at least 1 |
    | `seed` | order in which packets arrive |
    | `dtype` | element type of all payloads: int32, float32 or bfloat16 |
    | `pool`, `rules` | order of events in place of `seed`, and rules of the memory model that hold: for litmus tests (`functional.litmus`) |
    | `reduction_entries` | loads whose sums a switch port holds at once, at least 1; more loads evict partial sums, which stay right |

    | attribute | meaning |
    |---|---|
    | `told` | notifications that have arrived: (GPU, token, expert); the caller removes them |
    | `newly_ready` | tiles whose rows have all arrived: (object, GPU, tile), tile = (local expert, i); the caller removes them |
    | `packets` | packets by kind, once per link that they cross |

    Raises ConfigError for other sizes (a packet has no field for them) and for an unknown dtype.
    """

    def __init__(
        self, n_gpus: int, experts_per_gpu: int, *, planes: int = 18, seed: int = 0, dtype: str = "int32", reduction_entries: int = REDUCTION_ENTRIES,
        pool: Pool | None = None, rules: Rules = Rules(),  # noqa: B008 (a frozen value)
    ) -> None:  # fmt: skip
        n_gpus, experts_per_gpu, planes, reduction_entries = (fitting("Device", n, int) for n in (n_gpus, experts_per_gpu, planes, reduction_entries))
        if not 1 <= n_gpus <= MAX_GPUS or experts_per_gpu < 1 or n_gpus * experts_per_gpu > EXPERT_LIMIT or planes < 1 or reduction_entries < 1:
            sizes = f"{n_gpus} GPUs, {experts_per_gpu} experts each, {planes} planes, {reduction_entries} reduction entries"
            raise ConfigError(f"Device: found {sizes}, expected 1 .. {MAX_GPUS} GPUs, 1 .. {EXPERT_LIMIT} experts in all, 1 plane, 1 entry")
        self.n_gpus, self.experts_per_gpu, self.planes = n_gpus, experts_per_gpu, planes
        self.n_experts, self.number = n_gpus * experts_per_gpu, number(dtype)
        self.told: deque[tuple[int, int, int]] = deque()
        self.newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]] = deque()
        pool = RandomPool(seed) if pool is None else pool
        self._unit = _IssueUnit(n_gpus, experts_per_gpu, planes, pool, self.number, reduction_entries, self.told, rules)
        self.network = self._unit.network

    @property
    def packets(self) -> Counter[str]:
        """Packets by kind, once per link that they cross."""
        return self.network.statistics.packets

    def create(self, prop: DyMulticastObjectProp, n_tokens: int) -> DyMulticastObject:
        """A new object of `n_tokens` blocks over all GPUs, after the paper's `cuDyMulticastCreate` (section III).

        Every GPU that is a target must bind the object before an instruction names it.
        Raises ConfigError for no block, and for more blocks than 2^47 bytes of multimem space hold.
        """
        stride = 1 << (prop.bsize - 1).bit_length()
        last = self._unit.objects[-1] if self._unit.objects else None
        base = -(-last.address(last.n_tokens) // stride) * stride if last else 0
        if not is_whole(n_tokens) or n_tokens < 1 or base + n_tokens * stride > SPACE:
            raise ConfigError(f"create n_tokens: found {show(n_tokens)}, expected 1 .. {(SPACE - base) // stride}")
        self._unit.objects.append(DyMulticastObject(self, prop, index(n_tokens), base, stride))
        return self._unit.objects[-1]

    # ---- instructions ------------------------------------------------------------------------------------------------

    def dymultimem_st(self, gpu: int, obj: DyMulticastObject, address: int, data: Array, targets: Sequence[int] | Array) -> Handle:
        """GPU `gpu` stores `data` into stage 0 of the block of every target expert. Packets move when the device runs.

        | operand | contents |
        |---|---|
        | `gpu` | the GPU that issues the instruction, 0 .. `n_gpus` - 1; it need not be bound |
        | `obj` | an object of this device |
        | `address` | where to begin in the block: `obj.address(token, offset)`, a multiple of 16 |
        | `data` | `[n_elements]` array of the device's dtype, whole 16 B vectors, not past the end of the block |
        | `targets` | list or `[n_targets]` array: at most 32767 distinct experts on bound GPUs; none: complete at once |

        Returns a `Handle`; its `done` says whether all targets have the data.
        Raises IsaError with instruction, operand and GPU for any other operand. The device then sends no packet.
        """
        gpu = self._gpu(ST, gpu)
        if not isinstance(data, np.ndarray):
            raise IsaError(f"{ST} data on GPU {gpu}: found {type(data).__name__}, expected a NumPy array of {self.number.name}")
        if data.dtype != self.number.stored:
            raise IsaError(f"{ST} data on GPU {gpu}: found dtype {data.dtype}, expected {self.number.name}")
        if data.ndim != 1:
            raise IsaError(f"{ST} data on GPU {gpu}: found shape {data.shape}, expected one dimension")
        listed = _target_list(ST, gpu, targets)
        address = self._unit.check(ST, gpu, obj, address, data.size, listed)
        handle = Handle(ST, gpu, np.zeros(0, self.number.stored))
        self._unit.issue(handle, obj, address, data.tobytes(), data.nbytes, listed)
        return handle

    def dymultimem_ld_reduce(self, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int] | Array) -> Handle:
        """GPU `gpu` reads `n_elements` of the block of every target expert and adds them, without weights.

        | operand | contents |
        |---|---|
        | `gpu`, `obj` | as for `dymultimem_st` |
        | `address` | where to begin in the block: `obj.address(token, offset)`, a multiple of 16 |
        | `n_elements` | elements to read, whole 16 B vectors, not past the end of the block |
        | `targets` | as for `dymultimem_st`; none: the result is zeros |

        The load reads the last stage of the object: 1 of two, or 0 of one. Returns a `Handle`; when `done`, its `value` is `[n_elements]` of the
        device's dtype. Floats are added in float32 and rounded at each GPU, at the switch and at `gpu`.

        Raises IsaError with instruction, operand and GPU for any other operand. The device then sends no packet.
        `run` raises IsaError for a target to which nobody stored the block.
        """
        gpu = self._gpu(LD, gpu)
        n_elements = whole(f"{LD} n_elements on GPU {gpu}", n_elements, MAX_ELEMENTS)
        listed = _target_list(LD, gpu, targets)
        address = self._unit.check(LD, gpu, obj, address, n_elements, listed)
        handle = Handle(LD, gpu, np.zeros(n_elements, self.number.stored))
        self._unit.issue(handle, obj, address, None, n_elements * self.number.bytes, listed)
        return handle

    def notify(self, gpu: int, home: int, token: int, expert: int) -> None:
        """GPU `gpu` tells GPU `home` that `expert` has finished `token`; (home, token, expert) arrives in `told`.

        Raises IsaError for a GPU or an expert that the device does not have, and for a token outside 32 bits.
        """
        gpu, home = self._gpu("notify", gpu), whole("notify home", home, self.n_gpus)
        token, expert = whole("notify token", token, MAX_TOKENS), whole("notify expert", expert, self.n_experts)
        self._unit.leave(gpu, lambda: self.network.notify(gpu, home, token, expert, plane=token % self.planes, tag=0))

    def fence(self, gpu: int) -> None:
        """What GPU `gpu` issues from here on, notifications too, leaves when all that it issued before is done. Raises IsaError for no such GPU."""
        self._unit.fence(self._gpu("fence", gpu))

    def _gpu(self, name: str, gpu: int) -> int:
        return whole(f"{name} gpu", gpu, self.n_gpus)

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver all packets. Raises EmulationMismatch with the instructions that are not complete then."""
        while self.step():
            pass
        waiting = list(self.network.under_way())
        if waiting:
            names = ", ".join(f"{t.handle.name} tag {t.tag} on GPU {t.source}" for t in waiting[:3])
            raise EmulationMismatch(f"run: found {len(waiting)} packets that never complete ({names}), expected none")

    def step(self) -> bool:
        """Run one random event: a packet arrives, or memory answers. False if no event is left."""
        if not len(self.network.pool):
            return False
        self.network.step()
        return True


def _target_list(instruction: str, gpu: int, targets: Any) -> Numbers:
    """Experts as ints, from a sequence, a range or a one-dimensional array of integers. Raises IsaError."""
    where = f"{instruction} targets on GPU {gpu}"
    flat = targets.ndim == 1 if isinstance(targets, np.ndarray) else hasattr(targets, "__iter__") and not isinstance(targets, str)
    if not flat:
        raise IsaError(f"{where}: found {show(targets)}, expected a list or a one-dimensional array of experts")
    if hasattr(targets, "__len__") and len(targets) > MAX_TARGETS:
        raise IsaError(f"{instruction} target count on GPU {gpu}: found {len(targets)}, expected at most {MAX_TARGETS}")
    listed = tuple(targets)
    for target in listed:
        if not is_whole(target):
            raise IsaError(f"{where}: found {show(target)}, expected integers")
    return tuple(map(index, listed))
