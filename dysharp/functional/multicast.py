"""Dynamic multicast objects of the runtime API: blocks in multimem space, and the memory that each GPU binds to them.

Source: DySHARP (arXiv 2605.05607), section III: create and bind (Fig. 11), algebraic layout (Fig. 9), token tracker
(Fig. 13). Decisions where the paper is silent: docs/design/0004.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from dysharp.errors import ConfigError, IsaError
from dysharp.functional.network.network import Network
from dysharp.functional.network.transaction import Transaction
from dysharp.functional.numbers import Number
from dysharp.isa.commands import RULES, Command
from dysharp.protocol import al_table, tracker

Array = NDArray[Any]
ALIGN: Final = 16  # bytes; one flit, and the grain in which the tracker counts a row
TILE_ROWS, TLB_ENTRIES, TRACKER_ENTRIES = 128, 512, 1024
ST, LD = RULES[Command.DYST].name, RULES[Command.DYLD].name


@dataclass(frozen=True, slots=True)
class DyMulticastObjectProp:
    """Properties of an object, after the paper's `CUDymulticastObjectProp`.

    `bsize`: bytes of one block (a token vector), a positive multiple of 16. `stage`: 2 = two regions, one that
    `dymultimem_st` writes (Dispatch) and one that `dymultimem_ld_reduce` reads (Combine), under one mapping of blocks;
    1 = both use the same region.
    """

    bsize: int
    stage: int = 2


class OwnDevice(Protocol):
    """The part of a `Device` that objects use."""

    n_gpus: int
    experts_per_gpu: int
    number: Number
    network: Network[Any]
    newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]]

    def notify(self, gpu: int, home: int, token: int, expert: int) -> None: ...


class DyMulticastObject:
    """`n_tokens` blocks of `prop.bsize` bytes, block `i` from `address(i)` on. Made by `Device.create`.

    Blocks lie at a power-of-two stride from `base` on. An expert's memory holds only the blocks that were stored to it,
    in the order in which their first packets arrived. A tile is (local expert, row of tiles): 128 such blocks, the last
    tile of an expert may have fewer.
    """

    def __init__(self, device: OwnDevice, prop: DyMulticastObjectProp, n_tokens: int, base: int, stride: int) -> None:
        self.device, self.prop, self.n_tokens, self.base, self.stride = device, prop, n_tokens, base, stride
        self.bound: dict[int, BoundMemory] = {}

    def address(self, token: int, offset: int = 0) -> int:
        """Multimem address of byte `offset` of block `token`.

        The address is not checked here: an instruction refuses a wrong address.
        """
        return self.base + token * self.stride + offset

    def bind(self, gpu: int, nactive: Sequence[int]) -> None:
        """Give `gpu` memory, after the paper's `cuDyMulticastBindAddr`.

        `nactive`: blocks that will be stored to each local expert, `experts_per_gpu` counts of at least 0, known from
        the router. A store of one block more raises IsaError when it arrives. Raises ConfigError for a GPU outside the
        device, a second bind of a GPU, and other counts.
        """
        d = self.device
        if not 0 <= gpu < d.n_gpus:
            raise ConfigError(f"bind gpu: found {gpu}, expected 0 .. {d.n_gpus - 1}")
        if gpu in self.bound:
            raise ConfigError(f"bind gpu: found GPU {gpu} bound already, expected one bind per GPU")
        if len(nactive) != d.experts_per_gpu or min(nactive) < 0:
            raise ConfigError(f"bind nactive on GPU {gpu}: found {list(nactive)}, expected {d.experts_per_gpu} counts of at least 0")
        self.bound[gpu] = BoundMemory(self, gpu, tuple(int(n) for n in nactive))

    def memory(self, gpu: int, stage: int, local_expert: int) -> Array:
        """`[nactive, bsize / element bytes]` of the device's dtype: the memory, one row per block in layout order.

        `stage`: 0 = the region that stores write, 1 = the region that loads read (objects of two stages). Rows that no
        store has written hold NaN (floats) or -1234567891 (integers). Raises ConfigError for a GPU that is not bound,
        an unknown stage and an unknown local expert.
        """
        bound = self.bound.get(gpu)
        if bound is None or not 0 <= stage < self.prop.stage or not 0 <= local_expert < self.device.experts_per_gpu:
            raise ConfigError(f"memory: found GPU {gpu}, stage {stage}, local expert {local_expert}, expected a bound GPU")
        return bound.memory[stage][local_expert]

    def layout(self, gpu: int, local_expert: int) -> list[int]:
        """Tokens of a local expert: entry `i` is the token whose block lies in row `i` of `memory`."""
        return list(self.bound[gpu].tables.al.tables[local_expert])

    def home(self, token: int) -> int:
        """The source GPU of a token. GPUs get tokens in runs of ceil(n_tokens / n_gpus)."""
        return token // -(-self.n_tokens // self.device.n_gpus)

    def is_ready(self, gpu: int, tile: tracker.Tile) -> bool:
        """Whether all rows of `tile` have arrived on `gpu`, so that GEMM-1 may start."""
        return tile in self.bound[gpu].ready

    def gemm1_done(self, gpu: int, tile: tracker.Tile) -> None:
        """Tell the tracker that GEMM-1 of `tile` is visible on `gpu`."""
        self.bound[gpu].tables.track(tracker.Gemm1Block(tile))

    def gemm2_done(self, gpu: int, tile: tracker.Tile) -> None:
        """Tell the tracker that GEMM-2 of `tile` is visible on `gpu`.

        The tracker then notifies the source GPUs of the tile's tokens (`Device.told`).
        """
        self.bound[gpu].tables.track(tracker.Gemm2Block(tile))


class BoundMemory:
    """An object on one GPU: memory by stage and local expert, the tables of the hub, and the ready tiles."""

    def __init__(self, obj: DyMulticastObject, gpu: int, nactive: tuple[int, ...]) -> None:
        d = obj.device
        columns = obj.prop.bsize // d.number.bytes
        self._obj, self._gpu, self._nactive = obj, gpu, nactive
        self.memory = [[d.number.poison((n, columns)) for n in nactive] for _ in range(obj.prop.stage)]
        self.ready: set[tracker.Tile] = set()
        al = al_table.empty(len(nactive), TLB_ENTRIES)
        ts = tracker.empty(tracker.Shape(TILE_ROWS, obj.prop.bsize, nactive), TRACKER_ENTRIES)
        self.tables = d.network.tables(gpu, al, ts, self)

    def store(self, stage: int, offset: int, payload: Array, places: list[tuple[int, int]]) -> None:
        """Write `payload` into the block of each place, beginning at byte `offset`.

        Place: (local expert, layout block).
        """
        first, n_bytes = offset // payload.itemsize, payload.nbytes
        for e, block in places:
            self.memory[stage][e][block, first : first + len(payload)] = payload
            for start in range(offset, offset + n_bytes, ALIGN):
                self.tables.track(tracker.Store(e, block, start // ALIGN, ALIGN))

    # ---- calls of the tables (TablesOwner) ---------------------------------------------------------------------------

    def _expert(self, local: int) -> int:
        return self._gpu * len(self._nactive) + local

    def allocated(self, key: al_table.Key, layout: int) -> None:
        local, token = key
        if layout >= self._nactive[local]:
            where = f"{ST} region of expert {self._expert(local)} on GPU {self._gpu}"
            raise IsaError(f"{where}: found {layout + 1} blocks, expected at most nactive = {self._nactive[local]}")
        self.tables.track(tracker.Bind(local, layout, token))

    def unbound(self, t: Transaction, key: al_table.Key) -> None:
        where = f"expert {self._expert(key[0])} of block {key[1]}"
        raise IsaError(f"{LD} targets on GPU {t.source}: found {where}, expected one that {ST} wrote")

    def tile_ready(self, tile: tracker.Tile) -> None:
        self.ready.add(tile)
        self._obj.device.newly_ready.append((self._obj, self._gpu, tile))

    def output_visible(self, expert: int, block: int) -> None:
        self._obj.device.notify(self._gpu, self._obj.home(block), block, self._expert(expert))
