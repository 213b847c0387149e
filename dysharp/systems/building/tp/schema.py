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

from dysharp.program import Nature, Operator
from dysharp.program.schema import Buffer, Function, Schema

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
