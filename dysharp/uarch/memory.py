"""The memory of a node: bandwidth that tasks and transfers promise each other in turn (docs/design/0007)."""

from dysharp.uarch.columns import HARDWARE_MEMORY, HARDWARE_NODES, PROMISED
from dysharp.uarch.kernel import block


@block
def memory_take(nodes, node, amount, m, now):
    """`amount` bytes go next at the memory of `node` (or of the node with this port).

    Returns when all that is promised will have gone; `now` if nothing shares the memory.
    """
    until = now
    if m[HARDWARE_MEMORY] > 0:
        node = node % m[HARDWARE_NODES]
        nodes[node, PROMISED] = max(nodes[node, PROMISED], now)
        nodes[node, PROMISED] += (amount * 1_000_000 + m[HARDWARE_MEMORY] - 1) // m[HARDWARE_MEMORY]
        until = nodes[node, PROMISED]
    return until
