"""The memory of a node: bandwidth that tasks and transfers promise each other in turn (docs/design/0007)."""

from dysharp.uarch.columns import M_MEMORY, PROMISED
from dysharp.uarch.kernel import block


@block
def memory_take(nodes, node, amount, m, now):
    """`amount` bytes go next; until when all that is promised will have gone. Only where memory is shared."""
    nodes[node, PROMISED] = max(nodes[node, PROMISED], now)
    nodes[node, PROMISED] += (amount * 1_000_000 + m[M_MEMORY] - 1) // m[M_MEMORY]
    return nodes[node, PROMISED]
