"""The runtime API for kernel developers: create and bind multicast objects, issue the two instructions, run.

No Program is needed: a `Device` drives the network of the functional machine directly. Source: DySHARP (arXiv
2605.05607), section III (instructions, hub, API of Fig. 11, tracker). Decisions where the paper is silent:
docs/design/0004. Integer results do not depend on the order of packets; float sums are rounded in the order in which
the seed lets packets arrive.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError, EmulationMismatch, IsaError
from dysharp.functional.issue import Handle, IssueUnit
from dysharp.functional.multicast import ALIGN, LD, ST, TILE_ROWS, DyMulticastObject, DyMulticastObjectProp
from dysharp.functional.numbers import number
from dysharp.isa.packets import EXPERT_LIMIT
from dysharp.protocol import tracker

__all__ = ["ALIGN", "TILE_ROWS", "Device", "DyMulticastObject", "DyMulticastObjectProp", "Handle"]

Array = NDArray[Any]
MAX_GPUS, SPACE = 1 << 12, 1 << 47  # fields of a packet: source, address of a replica
REDUCTION_ENTRIES: Final = 256


class Device:
    """`n_gpus` GPUs with `experts_per_gpu` experts each under `planes` switch planes; experts are numbered GPU by GPU.

    | argument | meaning |
    |---|---|
    | `seed` | order in which packets arrive |
    | `dtype` | element type of all payloads: int32, float32 or bfloat16 |
    | `reduction_entries` | sessions that the reduction table of a switch port holds |

    | attribute | meaning |
    |---|---|
    | `told` | notifications that have arrived: (GPU, token, expert); the caller removes them |
    | `newly_ready` | tiles whose rows have all arrived: (object, GPU, tile); the caller removes them |
    | `packets` | packets by kind, once per link that they cross |

    Raises ConfigError for sizes outside the fields of a packet: 1 .. 4096 GPUs, 1 .. 65536 experts in all, and for an
    unknown dtype.
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
            raise ConfigError(f"Device: found {sizes}, expected 1 .. {MAX_GPUS} GPUs, 1 .. {EXPERT_LIMIT} experts in all, 1 plane, 1 entry")
        self.n_gpus, self.experts_per_gpu, self.planes = n_gpus, experts_per_gpu, planes
        self.n_experts, self.number = n_gpus * experts_per_gpu, number(dtype)
        self.told: deque[tuple[int, int, int]] = deque()
        self.newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]] = deque()
        self._unit = IssueUnit(n_gpus, experts_per_gpu, planes, seed, self.number, reduction_entries, self.told)
        self.network = self._unit.network

    @property
    def packets(self) -> Counter[str]:
        """Packets by kind, once per link that they cross."""
        return self.network.statistics.packets

    def create(self, prop: DyMulticastObjectProp, n_tokens: int) -> DyMulticastObject:
        """A new object of `n_tokens` blocks over all GPUs, after the paper's `cuDyMulticastCreate`.

        Every GPU that is a target must bind it before an instruction names the object.
        Raises ConfigError for a `bsize` that is no positive multiple of 16, a `stage` other than 1 or 2, no block, and
        more blocks than 2^47 bytes of multimem space hold.
        """
        if prop.bsize < ALIGN or prop.bsize % ALIGN:
            raise ConfigError(f"create bsize: found {prop.bsize}, expected a positive multiple of {ALIGN}")
        if prop.stage not in (1, 2):
            raise ConfigError(f"create stage: found {prop.stage}, expected 1 or 2 (a packet has one stage bit)")
        stride = 1 << (prop.bsize - 1).bit_length()
        last = self._unit.objects[-1] if self._unit.objects else None
        base = -(-last.address(last.n_tokens) // stride) * stride if last else 0
        if n_tokens < 1 or base + n_tokens * stride > SPACE:
            raise ConfigError(f"create n_tokens: found {n_tokens}, expected 1 .. {(SPACE - base) // stride}")
        self._unit.objects.append(DyMulticastObject(self, prop, n_tokens, base, stride))
        return self._unit.objects[-1]

    # ---- instructions ------------------------------------------------------------------------------------------------

    def dymultimem_st(self, gpu: int, obj: DyMulticastObject, address: int, data: Array, targets: Sequence[int]) -> Handle:
        """GPU `gpu` stores `data` into the block of every target expert. Packets move when the device runs.

        | operand | contents |
        |---|---|
        | `address` | where to begin in the block: `obj.address(token, offset)`, a multiple of 16 |
        | `data` | `[n_elements]` of the device's dtype, whole 16 B vectors, not past the end of the block |
        | `targets` | at most 32767 distinct experts on GPUs where `obj` is bound; [] completes at once |

        Raises IsaError with instruction, operand and GPU for any other operand. The device then sends no packet.
        """
        self._check_gpu(ST, gpu)
        if data.dtype != self.number.stored:
            raise IsaError(f"{ST} data on GPU {gpu}: found dtype {data.dtype}, expected {self.number.name}")
        if data.ndim != 1:
            raise IsaError(f"{ST} data on GPU {gpu}: found shape {data.shape}, expected one dimension")
        self._unit.check(ST, gpu, obj, address, data.size, targets)
        handle = Handle(ST, gpu, np.zeros(0, self.number.stored))
        self._unit.issue(handle, obj, address, data.tobytes(), data.nbytes, targets)
        return handle

    def dymultimem_ld_reduce(self, gpu: int, obj: DyMulticastObject, address: int, n_elements: int, targets: Sequence[int]) -> Handle:
        """GPU `gpu` reads `n_elements` of the block of every target expert and adds them, without weights.

        | operand | contents |
        |---|---|
        | `address` | where to begin in the block: `obj.address(token, offset)`, a multiple of 16 |
        | `n_elements` | elements to read, whole 16 B vectors, not past the end of the block |
        | `targets` | as for `dymultimem_st`; [] gives zeros |

        The load reads the region of the object's last stage. `Handle.value` is `[n_elements]` of the device's dtype.
        Floats are added in float32 and rounded at each GPU, at the switch and at `gpu`.

        Raises IsaError with instruction, operand and GPU for any other operand. `run` raises IsaError for a target
        without a store.
        """
        self._check_gpu(LD, gpu)
        self._unit.check(LD, gpu, obj, address, n_elements, targets)
        handle = Handle(LD, gpu, np.zeros(n_elements, self.number.stored))
        self._unit.issue(handle, obj, address, None, n_elements * self.number.bytes, targets)
        return handle

    def notify(self, gpu: int, home: int, token: int, expert: int) -> None:
        """GPU `gpu` tells GPU `home` that `expert` has finished `token`; (home, token, expert) arrives in `told`."""
        self.network.notify(gpu, home, token, expert, plane=token % self.planes, tag=0)

    def _check_gpu(self, name: str, gpu: int) -> None:
        if not 0 <= gpu < self.n_gpus:
            raise IsaError(f"{name} gpu: found GPU {gpu}, expected 0 .. {self.n_gpus - 1}")

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
