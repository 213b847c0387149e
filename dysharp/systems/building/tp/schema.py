"""What the ops of a sub-layer move: tiles and chunks of activations.

Tokens are cut into blocks of rows, block r is at home on GPU r mod N. A block has tiles of columns, a tile has chunks: chunk
(block, tile, k) has the number (block * tiles + tile) * K + k.

| `Template.fn` | kinds | `Ops.key` | meaning |
|---|---|---|---|
| gemm1 | COMPUTE | tile | the chunks of the tile in "partial" on the op's node |
| merge | PUSH_REDUCE | chunk | chunk of "sum" at home += the chunk of "partial" on the op's node |
| add | PUT | chunk | chunk of "sum" on the member += chunk of `src` on the op's node; it begins as the member's own chunk of "partial" |
| sum | PULL_REDUCE | chunk | chunk of "sum" on the op's node = the sum of "partial" on all members |
| norm | COMPUTE | block | the block's chunks of "rows" = norm of those of "sum", on the op's node |
| copy | PUT, MULTICAST | chunk | chunk of `dst` on every member = chunk of `src` on the op's node |
| load | GET, MERGED_LOAD | chunk | chunk of "gathered" on the op's node = chunk of "rows" on the member |
| gemm2 | COMPUTE | block | block of "out" = the block of `src` times the second weights. What is not in "gathered" is in "rows" |
"""

from dysharp.base.errors import ConfigError
from dysharp.program import Buffer, Function, Nature, Operator, Schema, frozen
from dysharp.specs import choice_int
from dysharp.workload.sublayer import SubLayer

PARTIAL, SUM, ROWS, GATHERED, OUT = "partial", "sum", "rows", "gathered", "out"


def _schema() -> Schema:
    buffers = (("activations", "tile"), (PARTIAL, "chunk"), (SUM, "chunk"), (ROWS, "chunk"), (GATHERED, "chunk"), (OUT, "block"))
    functions = (
        Function("gemm1", ("COMPUTE",), ("activations",), (PARTIAL,), "a tile of the first product"),
        Function("merge", ("PUSH_REDUCE",), (PARTIAL,), (SUM,), "a contribution to a chunk of the sum"),
        Function("add", ("PUT",), (PARTIAL, SUM), (SUM,), "a chunk, added to the chunk there"),
        Function("sum", ("PULL_REDUCE",), (PARTIAL,), (SUM,), "the sum of a chunk over all members"),
        Function("norm", ("COMPUTE",), (SUM,), (ROWS,), "the norm of a block of rows"),
        Function("copy", ("PUT", "MULTICAST"), (SUM, ROWS, GATHERED), (SUM, GATHERED), "a chunk"),
        Function("load", ("GET", "MERGED_LOAD"), (ROWS,), (GATHERED,), "a chunk of its home"),
        Function("gemm2", ("COMPUTE",), (ROWS, GATHERED), (OUT,), "a block of rows of the second product"),
    )
    return Schema(tuple(Buffer(name, rows, "elements") for name, rows in buffers), functions)


SCHEMA = _schema()
OPERATORS = (
    Operator("gemm1", Nature.COMPUTE),
    Operator("reduce", Nature.COMMUNICATION),
    Operator("norm", Nature.COMPUTE),
    Operator("gather", Nature.COMMUNICATION),
    Operator("gemm2", Nature.COMPUTE),
    Operator("other", Nature.HOST),
)


@frozen
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
