"""The runtime API for kernel developers: create a dynamic multicast object, bind it, issue the two instructions, run the network.

No Program is needed: a `Device` drives the network of the functional machine directly. Source: DySHARP (arXiv 2605.05607), section III
(instructions, hub, API of Fig. 11, tracker). Decisions where the paper is silent: docs/design/0004. Integer results do not depend on the
order of packets; float sums are rounded in the order in which the seed lets packets arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError, EmulationMismatch, IsaError
from dysharp.functional.faults import Faults
from dysharp.functional.multicast import ALIGN, LD, ST, TILE_ROWS, DyMulticastObject, DyMulticastObjectProp
from dysharp.functional.network.network import Network
from dysharp.functional.network.tables import HubTables, Place
from dysharp.functional.network.transaction import MAX_TAGS, PACKET_BYTES, Transaction
from dysharp.functional.network.values import Format, Value, hub_sum
from dysharp.functional.numbers import number
from dysharp.functional.orders import RandomPool
from dysharp.isa.commands import Command, Stage
from dysharp.isa.packets import EXPERT_LIMIT, Packet
from dysharp.protocol import tracker

__all__ = ["ALIGN", "TILE_ROWS", "Device", "DyMulticastObject", "DyMulticastObjectProp", "Handle"]

Array = NDArray[Any]
MAX_TARGETS: Final = (1 << 15) - 1
MAX_GPUS, SPACE = 1 << 12, 1 << 47  # fields of a packet: source, address of a replica
REDUCTION_ENTRIES: Final = 256


@dataclass(slots=True, eq=False)
class Handle:
    """An instruction under way on GPU `gpu`. `waiting`: its packets that are not complete."""

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
        """`[n_elements]` of the device's dtype: the reduced vector; `[0]` for a store. Raises EmulationMismatch before it is complete."""
        if self.waiting:
            raise EmulationMismatch(f"{self.name} on GPU {self.gpu}: found {self.waiting} packets under way, expected none (call run first)")
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Transaction):
    """One packet's worth of an instruction. `data`: what a store brings; `columns`: elements of the result that a load fills."""

    handle: Handle
    obj: DyMulticastObject
    data: bytes
    columns: slice


class Device:
    """`n_gpus` GPUs with `experts_per_gpu` experts each under `planes` switch planes; experts are numbered GPU by GPU.

    | argument | meaning |
    |---|---|
    | `seed` | order in which packets arrive |
    | `dtype` | element type of all payloads: int32, float32 or bfloat16 |
    | `reduction_entries` | sessions that the reduction table of a switch port holds |

    | attribute | meaning |
    |---|---|
    | `told` | notifications that have arrived: (GPU, token, expert); the caller takes them out |
    | `newly_ready` | tiles whose rows have all arrived: (object, GPU, tile); the caller takes them out |
    | `packets` | packets by kind, once per link that they cross |

    Raises ConfigError for sizes outside the fields of a packet: 1 .. 4096 GPUs, 1 .. 65536 experts in all, and for an unknown dtype.
    """

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
            sizes = f"{n_gpus} GPUs, {experts_per_gpu} experts each, {planes} planes, {reduction_entries} reduction entries"
            raise ConfigError(f"Device: found {sizes}, expected 1 .. {MAX_GPUS} GPUs, 1 .. {EXPERT_LIMIT} experts in all, at least 1 of the others")
        self.n_gpus, self.experts_per_gpu, self.planes = n_gpus, experts_per_gpu, planes
        self.n_experts, self.number = n_gpus * experts_per_gpu, number(dtype)
        self.told: deque[tuple[int, int, int]] = deque()
        self.newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]] = deque()
        self.network: Network[Part] = Network(
            self,
            RandomPool(seed),
            Format(self.number),
            n_gpus=n_gpus,
            experts_per_gpu=experts_per_gpu,
            reduction_entries=reduction_entries,
            faults=Faults(),
        )
        self._objects: list[DyMulticastObject] = []
        self._next_tag = [0] * n_gpus

    @property
    def packets(self) -> Counter[str]:
        """Packets by kind, once per link that they cross."""
        return self.network.statistics.packets

    def create(self, prop: DyMulticastObjectProp, n_tokens: int) -> DyMulticastObject:
        """A new object of `n_tokens` blocks over all GPUs, after the paper's `cuDyMulticastCreate`; bind it on every GPU that will be a target.

        Raises ConfigError for a `bsize` that is no positive multiple of 16, a `stage` other than 1 or 2, and more blocks than 2^47 bytes of
        multimem space hold.
        """
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
        """GPU `gpu` stores `data` at every target's own place of a block. Packets arrive when the device runs.

        | operand | contents |
        |---|---|
        | `address` | where to begin in the block: `obj.address(token, offset)`, a multiple of 16 |
        | `data` | `[n_elements]` of the device's dtype, whole 16 B vectors, not past the end of the block |
        | `targets` | distinct experts, 0 .. n_experts - 1, at most 32767, on GPUs where `obj` is bound; [] completes at once |

        Raises IsaError naming instruction, operand and GPU for any other operand; nothing is sent then.
        """
        self._check_gpu(ST, gpu)
        if data.dtype != self.number.stored:
            raise IsaError(f"{ST} data on GPU {gpu}: found dtype {data.dtype}, expected {self.number.name}")
        if data.ndim != 1:
            raise IsaError(f"{ST} data on GPU {gpu}: found shape {data.shape}, expected one dimension")
        self._check(ST, gpu, obj, address, data.size, targets)
        handle = Handle(ST, gpu, np.zeros(0, self.number.stored))
        self._issue(handle, obj, address, data.tobytes(), data.nbytes, targets)
        return handle

    def dymultimem_ld_reduce(self, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int]) -> Handle:
        """GPU `gpu` reads `n_elements` of every target's place of a block and adds them up, without weights.

        `address`, `targets`: as for `dymultimem_st`; an empty list gives zeros. `n_elements`: whole 16 B vectors, not past the end of the
        block. The region that is read is that of the object's last stage. `Handle.value`: `[n_elements]` of the device's dtype; floats are
        added in float32 and rounded at each GPU, at the switch and at `gpu`.

        Raises IsaError naming instruction, operand and GPU for any other operand, and while running for a target that was never stored.
        """
        self._check_gpu(LD, gpu)
        self._check(LD, gpu, obj, address, n_elements, targets)
        handle = Handle(LD, gpu, np.zeros(n_elements, self.number.stored))
        self._issue(handle, obj, address, None, n_elements * self.number.bytes, targets)
        return handle

    def notify(self, gpu: int, home: int, token: int, expert: int) -> None:
        """GPU `gpu` tells GPU `home` that `expert` has finished `token`; (home, token, expert) arrives in `told`."""
        self.network.notify(gpu, home, token, expert, plane=token % self.planes, tag=0)

    def _check_gpu(self, name: str, gpu: int) -> None:
        if not 0 <= gpu < self.n_gpus:
            raise IsaError(f"{name} gpu: found GPU {gpu}, expected 0 .. {self.n_gpus - 1}")

    def _check(self, name: str, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int]) -> None:
        """Operands in the order r1 .. r4 of the instruction."""
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
            holder = target // self.experts_per_gpu
            if not 0 <= target < self.n_experts:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target}, expected 0 .. {self.n_experts - 1}")
            if times > 1:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target} {times} times, expected distinct experts")
            if holder not in obj.bound:
                raise IsaError(f"{name} targets on GPU {gpu}: found expert {target} on GPU {holder}, expected a GPU where the object is bound")

    def _issue(self, handle: Handle, obj: DyMulticastObject, address: int, data: bytes | None, n_bytes: int, targets: Sequence[int]) -> None:
        """One transaction per 128 B; the targets on the own GPU are served in its hub. `data` None: a load. An empty list is complete."""
        gpu = handle.gpu
        listed = tuple(int(t) for t in targets if t // self.experts_per_gpu != gpu)
        near = tuple(sorted(int(t) % self.experts_per_gpu for t in targets if t // self.experts_per_gpu == gpu))
        for start in range(0, n_bytes if targets else 0, PACKET_BYTES):
            size, first = min(PACKET_BYTES, n_bytes - start), start // self.number.bytes
            part = Part(
                source=gpu,
                tag=self._tag(gpu),
                plane=self._plane(address + start),
                address=address + start,
                command=Command.DYLD if data is None else Command.DYST,
                dtype=Format(self.number).payload,
                n_bytes=size,
                stage=Stage.DISPATCH if data is not None else Stage(obj.prop.stage - 1),
                targets=listed,
                near=near,
                n_far=len(listed),
                n_near=len(near),
                handle=handle,
                obj=obj,
                data=b"" if data is None else data[start : start + size],
                columns=slice(first, first + size // self.number.bytes),
            )
            handle.waiting += 1
            self.network.open(part)
            if listed:
                self.network.request(part, part.data)
            if near:
                self.network.local(part, 0, lane=0)

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
        """Object, block and byte of a multimem address."""
        obj = self._objects[bisect_right(self._objects, address, key=lambda o: o.base) - 1]
        return obj, *divmod(address - obj.base, obj.stride)

    # ---- running ---------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver until nothing is left. Raises EmulationMismatch naming instructions that are not complete then."""
        while self.step():
            pass
        waiting = list(self.network.under_way())
        if waiting:
            names = ", ".join(f"{t.handle.name} tag {t.tag} on GPU {t.source}" for t in waiting[:3])
            raise EmulationMismatch(f"run: found {len(waiting)} packets that never complete ({names}), expected none")

    def step(self) -> bool:
        """One event, chosen at random, happens: a packet arrives, or memory answers. False if nothing is left."""
        if not len(self.network.pool):
            return False
        self.network.step()
        return True

    # ---- what the network asks (network.Driver) --------------------------------------------------------------------------------

    def locate(self, gpu: int, address: int) -> tuple[HubTables, int]:
        obj, block, _ = self._locate(address)
        return obj.bound[gpu].tables, block

    def store(self, t: Part, gpu: int, places: list[Place] | None, packet: Packet | None) -> None:
        data = np.frombuffer(t.data if packet is None else packet.payload, self.number.stored)
        t.obj.bound[gpu].store(t.stage, self._locate(t.address)[2], data, places or [])

    def load(self, t: Part, gpu: int, places: list[Place] | None, packet: Packet | None) -> Value:
        first, memory = self._locate(t.address)[2] // self.number.bytes, t.obj.bound[gpu].memory[t.stage]
        rows = [memory[e][block, first : first + t.elements] for e, block in places or []]
        return Value(hub_sum(rows, t.elements, self.number), ())

    def complete(self, t: Part, value: Value) -> None:
        if t.pull:
            t.handle.result[t.columns] = self.number.store(value.array)
        t.handle.waiting -= 1
        self.network.close(t)

    def notified(self, gpu: int, token: int, expert: int) -> None:
        self.told.append((gpu, token, expert))
