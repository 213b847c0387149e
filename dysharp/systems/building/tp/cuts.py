"""How a sub-layer is cut: blocks of rows with a home, tiles of columns, chunks that travel."""

from dataclasses import dataclass

from dysharp.errors import ConfigError
from dysharp.specs import choice_int
from dysharp.workload.sublayer import SubLayer


@dataclass(frozen=True, slots=True)
class Cuts:
    """`rows`: of a block. `blocks`: of all tokens; block r is at home on GPU r mod N. `tiles`: of a block, `width` columns each.
    `parts`: chunks of a tile, `chunk_bytes` each."""

    work: SubLayer
    rows: int
    blocks: int
    tiles: int
    width: int
    parts: int

    @property
    def chunks(self) -> int:
        """Chunks of a block."""
        return self.tiles * self.parts

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk that moves."""
        return self.rows * self.width // self.parts * self.work.element_bytes


def cuts_of(work: SubLayer, most_bytes: int) -> Cuts:
    """The cuts of `work`: blocks of at most `gemm.tile_rows` rows, as many on each GPU; chunks of at most `most_bytes`, at least a column.

    Raises ConfigError where GPUs do not divide the tokens, or tiles the width.
    """
    if work.tokens % work.gpus:
        raise ConfigError(f"sub-layer: found {work.tokens} tokens on {work.gpus} GPUs, expected a multiple of the GPUs (each is home of as many)")
    each = work.tokens // work.gpus
    many = next(k for k in range(-(-each // choice_int("gemm.tile_rows")), each + 1) if each % k == 0)
    tiles = -(-work.hidden // choice_int("gemm.tile_cols"))
    if work.hidden % tiles:
        raise ConfigError(f"sub-layer: found width {work.hidden}, expected one that {tiles} tiles divide")
    rows, width = each // many, work.hidden // tiles
    least = -(-rows * width * work.element_bytes // most_bytes)
    parts = next((k for k in range(least, width + 1) if width % k == 0), width)
    return Cuts(work, rows, work.tokens // rows, tiles, width, parts)
