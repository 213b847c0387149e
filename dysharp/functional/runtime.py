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

from collections import Counter, deque
from collections.abc import Sequence
from operator import index
from typing import Final

import numpy as np

from dysharp.base.arrays import Array
from dysharp.base.errors import ConfigError, EmulationMismatch, IsaError
from dysharp.functional.issue_unit import Handle, IssueUnit
from dysharp.functional.multicast import ALIGN, LD, ST, TILE_ROWS, DyMulticastObject, DyMulticastObjectProp, is_whole, show, target_list, whole
from dysharp.functional.network.queues import Rules
from dysharp.functional.numbers import number
from dysharp.functional.orders import Pool, RandomPool
from dysharp.isa.packets import EXPERT_LIMIT
from dysharp.protocol import tracker

__all__ = ["ALIGN", "TILE_ROWS", "Device", "DyMulticastObject", "DyMulticastObjectProp", "Handle"]

MAX_GPUS, SPACE = 1 << 12, 1 << 47  # fields of a packet: source, address of a replica
MAX_TOKENS, MAX_ELEMENTS = 1 << 32, 1 << 48  # field of a notification; more than any block has
REDUCTION_ENTRIES: Final = 256


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
        if not all(map(is_whole, (n_gpus, experts_per_gpu, planes, reduction_entries))):
            given = ", ".join(map(show, (n_gpus, experts_per_gpu, planes, reduction_entries)))
            raise ConfigError(f"Device: found {given}, expected integers: GPUs, experts per GPU, planes, reduction entries")
        if not 1 <= n_gpus <= MAX_GPUS or experts_per_gpu < 1 or n_gpus * experts_per_gpu > EXPERT_LIMIT or planes < 1 or reduction_entries < 1:
            sizes = f"{n_gpus} GPUs, {experts_per_gpu} experts each, {planes} planes, {reduction_entries} reduction entries"
            raise ConfigError(f"Device: found {sizes}, expected 1 .. {MAX_GPUS} GPUs, 1 .. {EXPERT_LIMIT} experts in all, 1 plane, 1 entry")
        n_gpus, experts_per_gpu, planes = map(index, (n_gpus, experts_per_gpu, planes))
        self.n_gpus, self.experts_per_gpu, self.planes = n_gpus, experts_per_gpu, planes
        self.n_experts, self.number = n_gpus * experts_per_gpu, number(dtype)
        self.told: deque[tuple[int, int, int]] = deque()
        self.newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]] = deque()
        pool = RandomPool(seed) if pool is None else pool
        self._unit = IssueUnit(n_gpus, experts_per_gpu, planes, pool, self.number, reduction_entries, self.told, rules)
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
        listed = target_list(ST, gpu, targets)
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
        listed = target_list(LD, gpu, targets)
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
