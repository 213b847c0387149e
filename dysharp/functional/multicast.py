"""Dynamic multicast objects of the runtime API: blocks in multimem space, and the memory that each GPU binds to them.

| word | meaning |
|---|---|
| block | the bytes of one token in an object: its row, `bsize` bytes |
| region | the memory of one GPU and one stage: for each local expert the blocks of the tokens that chose it |
| stage | 0: the region that `dymultimem_st` writes (Dispatch); 1: the region that `dymultimem_ld_reduce` reads (Combine) |
| local expert | the number of an expert on its GPU: `expert % experts_per_gpu` |
| bound GPU | a GPU that gave memory to the object with `bind`; only its experts can be targets |
| tile | (local expert, i): rows 128 i to 128 i + 127 of the memory of that expert, the unit of a GEMM |

Source: DySHARP (arXiv 2605.05607), section III: create and bind (Fig. 11), algebraic layout (Fig. 9), token tracker
(Fig. 13). Decisions where the paper is silent: docs/design/0004.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Final, Protocol

import numpy as np

from dysharp.base import Array, ConfigError, IsaError, Numbers, frozen
from dysharp.functional.network.core import Network
from dysharp.functional.network.transaction import Transaction
from dysharp.functional.numbers import Number
from dysharp.isa.commands import RULES, Command
from dysharp.protocol import al_table, tracker

LONGEST: Final = 80
FEW: Final = 8


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer: of Python, a NumPy scalar, or an array without dimensions."""
    try:
        index(value)
    except TypeError:
        return False
    return True


def show(value: Any) -> str:
    """`value` for an error message: the text of a number, the shape of an array; shortened."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {value.dtype} of shape {value.shape}" if value.size > FEW else str(value.tolist())
    text = str(index(value)) if is_whole(value) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _few(bound: Iterable[int]) -> str:
    """The GPUs that have bound an object, the first ones by number."""
    gpus = sorted(bound)
    if not gpus:
        return "none has"
    return "bound: " + ", ".join(map(str, gpus[:FEW])) + (f" and {len(gpus) - FEW} more" if len(gpus) > FEW else "")


def whole(where: str, value: Any, limit: int) -> int:
    """`value` as an int from 0 to `limit` - 1. Raises IsaError that begins with `where`."""
    if not is_whole(value):
        raise IsaError(f"{where}: found {show(value)}, expected an integer")
    number = index(value)
    if not 0 <= number < limit:
        raise IsaError(f"{where}: found {number}, expected 0 .. {limit - 1}")
    return number


ALIGN: Final = 16  # bytes; one flit, and the grain in which the tracker counts a row
TILE_ROWS, TLB_ENTRIES, TRACKER_ENTRIES = 128, 512, 1024
ST, LD = RULES[Command.DYST].name, RULES[Command.DYLD].name


@frozen
class DyMulticastObjectProp:
    """Properties of an object, after the paper's `CUDymulticastObjectProp` (section III).

    | field | meaning |
    |---|---|
    | `bsize` | bytes of one block (one token row), a positive multiple of 16 |
    | `stage` | number of stages, 2: stores write stage 0, loads read stage 1; a block has the same row in both. 1: both use stage 0 |

    Raises ConfigError for any other value.
    """

    bsize: int
    stage: int = 2

    def __post_init__(self) -> None:
        if not is_whole(self.bsize) or self.bsize < ALIGN or self.bsize % ALIGN:
            raise ConfigError(f"DyMulticastObjectProp bsize: found {show(self.bsize)}, expected a positive multiple of {ALIGN} (bytes)")
        if not is_whole(self.stage) or self.stage not in (1, 2):
            raise ConfigError(f"DyMulticastObjectProp stage: found {show(self.stage)}, expected 1 or 2 (number of stages)")
        object.__setattr__(self, "bsize", index(self.bsize))  # NumPy scalars as ints
        object.__setattr__(self, "stage", index(self.stage))


class _OwnDevice(Protocol):
    """The part of a `Device` that objects use."""

    n_gpus: int
    experts_per_gpu: int
    number: Number
    network: Network[Any]
    newly_ready: deque[tuple[DyMulticastObject, int, tracker.Tile]]

    def notify(self, gpu: int, home: int, token: int, expert: int) -> None: ...


class DyMulticastObject:
    """`n_tokens` blocks of `prop.bsize` bytes, block `i` (of token `i`) from `address(i)` on. Made by `Device.create`.

    Blocks lie at a power-of-two stride from `base` on. An expert's memory holds only the blocks that were stored to it,
    in the order in which their first packets arrived. `layout` tells that order. The last tile of an expert may have
    fewer than 128 rows. The table in `dysharp.functional.multicast` says what a stage, a tile and a bound GPU are.
    """

    def __init__(self, device: _OwnDevice, prop: DyMulticastObjectProp, n_tokens: int, base: int, stride: int) -> None:
        self.device, self.prop, self.n_tokens, self.base, self.stride = device, prop, n_tokens, base, stride
        self.bound: dict[int, _BoundMemory] = {}

    def address(self, token: int, offset: int = 0) -> int:
        """Multimem address of byte `offset` of the block of `token`.

        The address is not checked here: an instruction refuses a wrong address.
        """
        return self.base + token * self.stride + offset

    def bind(self, gpu: int, nactive: Sequence[int]) -> None:
        """Give `gpu` memory, after the paper's `cuDyMulticastBindAddr` (section III). The GPU is then bound.

        | argument | contents |
        |---|---|
        | `gpu` | a GPU of the device that is not bound yet |
        | `nactive` | `[experts_per_gpu]` integers of at least 0: blocks that will be stored to each local expert, known from the router |

        A store of one block more raises IsaError when it arrives. Raises ConfigError for other arguments.
        """
        d = self.device
        if not is_whole(gpu) or not 0 <= gpu < d.n_gpus:
            raise ConfigError(f"bind gpu: found {show(gpu)}, expected 0 .. {d.n_gpus - 1}")
        if gpu in self.bound:
            raise ConfigError(f"bind gpu: found GPU {gpu} bound already, expected one bind per GPU")
        counts: list[Any] = list(nactive) if hasattr(nactive, "__iter__") else [nactive]
        if len(counts) != d.experts_per_gpu or not all(is_whole(n) and n >= 0 for n in counts):
            raise ConfigError(f"bind nactive on GPU {gpu}: found {show(nactive)}, expected {d.experts_per_gpu} counts of at least 0")
        self.bound[index(gpu)] = _BoundMemory(self, gpu, tuple(map(index, counts)))

    def memory(self, gpu: int, stage: int, local_expert: int) -> Array:
        """`[nactive, bsize / element bytes]` of the device's dtype: the memory itself, one row per block in layout order.

        | argument | contents |
        |---|---|
        | `gpu` | a bound GPU |
        | `stage` | 0: the region that stores write; 1: the region that loads read, of objects with two stages |
        | `local_expert` | 0 .. `experts_per_gpu` - 1 |

        Rows that no store has written hold NaN (floats) or -1234567891 (integers). Raises ConfigError for other
        arguments; the message says which GPUs, stages and local experts there are.
        """
        bound = self._on("memory", gpu)
        if not is_whole(stage) or not 0 <= stage < self.prop.stage:
            stages = f"0 (written by {ST})" + (f" or 1 (read by {LD})" if self.prop.stage == 2 else f" (written by {ST}, read by {LD})")
            raise ConfigError(f"memory stage: found {show(stage)}, expected {stages}")
        return bound.memory[stage][self._local("memory", local_expert)]

    def layout(self, gpu: int, local_expert: int) -> list[int]:
        """Tokens of a local expert: entry `i` is the token whose block lies in row `i` of `memory`.

        Raises ConfigError for a GPU that is not bound and an unknown local expert.
        """
        return list(self._on("layout", gpu).tables.al.tables[self._local("layout", local_expert)])

    def home(self, token: int) -> int:
        """The source GPU of a token. GPUs get tokens in runs of ceil(n_tokens / n_gpus). Raises ConfigError for another token."""
        if not is_whole(token) or not 0 <= token < self.n_tokens:
            raise ConfigError(f"home token: found {show(token)}, expected 0 .. {self.n_tokens - 1}")
        return index(token) // -(-self.n_tokens // self.device.n_gpus)

    def is_ready(self, gpu: int, tile: tracker.Tile) -> bool:
        """Whether all rows of `tile` have arrived on `gpu`, so that GEMM-1 may start.

        `tile`: (local expert, i), rows 128 i to 128 i + 127 of the memory of that expert. Raises ConfigError for a GPU
        that is not bound and a tile that the object does not have there.
        """
        return self._tile("is_ready", gpu, tile) in self.bound[gpu].ready

    def gemm1_done(self, gpu: int, tile: tracker.Tile) -> None:
        """Tell the tracker that the result of GEMM-1 of `tile` is visible on `gpu`. Arguments and errors as in `is_ready`."""
        tile = self._tile("gemm1_done", gpu, tile)
        self.bound[gpu].tables.track(tracker.Gemm1Block(tile))

    def gemm2_done(self, gpu: int, tile: tracker.Tile) -> None:
        """Tell the tracker that the result of GEMM-2 of `tile` is visible on `gpu`. Arguments and errors as in `is_ready`.

        The tracker then notifies the source GPUs of the tile's tokens (`Device.told`).
        """
        tile = self._tile("gemm2_done", gpu, tile)
        self.bound[gpu].tables.track(tracker.Gemm2Block(tile))

    # ---- checks of arguments -----------------------------------------------------------------------------------------

    def _on(self, call: str, gpu: int) -> _BoundMemory:
        if not is_whole(gpu) or gpu not in self.bound:
            raise ConfigError(f"{call} gpu: found {show(gpu)}, expected a GPU that has bound the object ({_few(self.bound)})")
        return self.bound[gpu]

    def _local(self, call: str, local_expert: int) -> int:
        n = self.device.experts_per_gpu
        if not is_whole(local_expert) or not 0 <= local_expert < n:
            raise ConfigError(f"{call} local_expert: found {show(local_expert)}, expected 0 .. {n - 1} (expert % {n})")
        return local_expert

    def _tile(self, call: str, gpu: int, tile: tracker.Tile) -> tracker.Tile:
        bound = self._on(call, gpu)
        if not isinstance(tile, tuple) or len(tile) != 2 or not all(map(is_whole, tile)):
            raise ConfigError(f"{call} tile: found {show(tile)}, expected (local expert, number of the tile)")
        local = self._local(f"{call} tile", tile[0])
        rows = bound.nactive[local]
        n_tiles = -(-rows // TILE_ROWS)
        if not 0 <= tile[1] < n_tiles:
            tiles = f"0 .. {n_tiles - 1}" if n_tiles else "none"
            raise ConfigError(f"{call} tile: found number {tile[1]}, expected {tiles}: local expert {local} on GPU {gpu} has {rows} rows")
        return index(local), index(tile[1])


class _BoundMemory:
    """An object on one GPU: memory by stage and local expert, the tables of the hub, and the ready tiles."""

    def __init__(self, obj: DyMulticastObject, gpu: int, nactive: Numbers) -> None:
        d = obj.device
        columns = obj.prop.bsize // d.number.bytes
        self._obj, self._gpu, self.nactive = obj, gpu, nactive
        self.memory = [[d.number.poison((n, columns)) for n in nactive] for _ in range(obj.prop.stage)]
        self.ready: set[tracker.Tile] = set()
        al = al_table.empty(len(nactive), TLB_ENTRIES)
        ts = tracker.empty(tracker.TileShape(TILE_ROWS, obj.prop.bsize, nactive), TRACKER_ENTRIES)
        self.tables = d.network.tables(gpu, al, ts, self)

    def store(self, stage: int, offset: int, payload: Array, places: list[tuple[int, int]]) -> None:
        """Write `payload` into the block of each place, beginning at byte `offset`.

        Place: (local expert, layout block).
        """
        first, n_bytes = offset // payload.itemsize, payload.nbytes
        for e, block in places:
            self.memory[stage][e][block, first : first + len(payload)] = payload
            for start in range(offset, offset + n_bytes, ALIGN):
                self.tables.track(tracker.ChunkStore(e, block, start // ALIGN, ALIGN))

    # ---- calls of the tables (TablesOwner) ---------------------------------------------------------------------------

    def _expert(self, local: int) -> int:
        return self._gpu * len(self.nactive) + local

    def allocated(self, key: al_table.Key, layout: int) -> None:
        local, token = key
        if layout >= self.nactive[local]:
            where = f"{ST} region of expert {self._expert(local)} on GPU {self._gpu}"
            raise IsaError(f"{where}: found {layout + 1} blocks, expected at most nactive = {self.nactive[local]}")
        self.tables.track(tracker.Bind(local, layout, token))

    def unbound(self, t: Transaction, key: al_table.Key) -> None:
        where = f"expert {self._expert(key[0])} of block {key[1]}"
        raise IsaError(f"{LD} targets on GPU {t.source}: found {where}, expected one that {ST} wrote")

    def tile_ready(self, tile: tracker.Tile) -> None:
        self.ready.add(tile)
        self._obj.device.newly_ready.append((self._obj, self._gpu, tile))

    def output_visible(self, expert: int, block: int) -> None:
        self._obj.device.notify(self._gpu, self._obj.home(block), block, self._expert(expert))
