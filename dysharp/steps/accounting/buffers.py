"""Memory outside the allocator of a framework: buffers that a dispatcher takes for its whole life."""

from dysharp.errors import ConfigError, nearest
from dysharp.specs.fields import show
from dysharp.specs.whole import WholeModel
from dysharp.steps.layout import Layout

ROW_BYTES = 2
"""BF16, the wider of the two formats that cross the wire."""
DEEPEP_SMS = 20
"""SMs of DeepEP's training default; two SMs are a channel."""
DEEPEP_NVL_TOKENS, DEEPEP_RDMA_TOKENS = 256, 128
"""Rows of a channel's receive queue per peer (deepseek-ai/DeepEP, deep_ep/buffer.py: default configurations)."""
NODE_GPUS = 8
DISPATCHERS = ("alltoall", "deepep", "hybrid-ep")


def buffer_bytes(dispatcher: str, model: WholeModel, layout: Layout, sequence: int) -> float:
    """Bytes per GPU that `dispatcher` holds outside the allocator. Raises `ConfigError` for an unknown name.

    | dispatcher | bytes |
    |---|---|
    | alltoall | 0: its tensors come from the allocator |
    | deepep | queues: channels x peers x rows, over NVLink, and twice over RDMA beyond a node |
    | hybrid-ep | an upper bound: the rows of all ranks of the expert group, for Dispatch and for Combine |
    """
    if dispatcher not in DISPATCHERS:
        raise ConfigError(f"dispatcher {show(dispatcher)}: unknown{nearest(dispatcher, DISPATCHERS)}")
    row = ROW_BYTES * model.hidden
    if dispatcher == "alltoall" or model.layer is None or layout.ep == 1:
        return 0.0
    if dispatcher == "hybrid-ep":
        return 2.0 * row * layout.ep * layout.tokens(sequence) / layout.tp
    channels, peers, nodes = DEEPEP_SMS // 2, min(layout.ep, NODE_GPUS), -(-layout.ep // NODE_GPUS)
    over_nics = 2 * channels * nodes * DEEPEP_RDMA_TOKENS * row if nodes > 1 else 0
    return float(channels * peers * DEEPEP_NVL_TOKENS * row + over_nics)
