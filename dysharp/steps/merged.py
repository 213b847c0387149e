"""A MoE block as a merged Program, and the overlapped pair of a forward block beside a backward block of another micro-batch (0022, 0026).

Order of a pair: DualPipe's, which is Megatron's overlap of EP communication with delayed gradients of weights. Attention (F) and the MoE layer (B)
begin together; then the MoE layer (F); attention (B) follows the MoE layer (B); gradients of weights fill what is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dysharp.errors import ConfigError, ProgramError
from dysharp.program import Program
from dysharp.program.merge import Cross, Part, merge
from dysharp.program.tables import Shares
from dysharp.steps.cost import BlockTimes
from dysharp.steps.kernels import SM, BlockKernels, kernels_program, last_ops

PARTS = ATTENTION_F, MOE_B, SHARED_B, MOE_F, SHARED_F, ATTENTION_B, WEIGHTS, HOST_F, HOST_B = (
    "attention_f", "moe_b", "shared_b", "moe_f", "shared_f", "attention_b", "weights", "host_f", "host_b",
)  # fmt: skip
TURN = dict(zip(PARTS, "abcdefghi", strict=True))
"""Part of a block -> its turn at the SMs: parts are served in the order of their labels."""
FORWARD, BACKWARD = (ATTENTION_F, MOE_F, SHARED_F, HOST_F), (MOE_B, SHARED_B, ATTENTION_B, WEIGHTS, HOST_B)
STEADY = 2
"""Pairs that run one behind the other; the time of a pair is what the last one adds."""


def label(part: str, turn: int = 0) -> str:
    """The label of a part of block `turn` in a merge."""
    return f"p{turn}{TURN[part]}_{part}"


def merged_block(parts: Mapping[str, Program], blocks: int = 1, held: int = 0) -> Program:
    """`blocks` blocks one behind the other, forward, backward or both side by side, as `parts` say. `held`: SMs that communication keeps.

    Empty chains of kernels are left out of `parts`. Raises ProgramError for Programs that cannot be parts of a stream.
    """
    listed = [Part(label(name, k), program, layer=k, microbatch=int(name in BACKWARD), direction="bwd" if name in BACKWARD else "fwd")
              for k in range(blocks) for name, program in parts.items()]  # fmt: skip
    ways = ([name for name in (ATTENTION_F, MOE_F) if name in parts], [name for name in (MOE_B, ATTENTION_B) if name in parts])
    streams = [[label(name, k) for k in range(blocks) for name in way] for way in ways if way]
    edges = [cross for k in range(blocks) for cross in _waits(parts, k, k + 1 < blocks)]
    return _on_free(merge(listed, streams=streams, edges=edges), held)


def _waits(parts: Mapping[str, Program], k: int, more: bool) -> list[Cross]:
    """Waits of block `k` beside its streams: shared experts and gradients of weights. `more`: a block follows."""
    wanted = [((SHARED_F, k), (ATTENTION_F, k)), ((ATTENTION_B, k), (SHARED_B, k)), ((WEIGHTS, k), (ATTENTION_B, k))]
    wanted += [((ATTENTION_F, k + 1), (SHARED_F, k)), ((SHARED_B, k + 1), (ATTENTION_B, k))] if more else []
    return [
        Cross(label(*later), np.arange(parts[later[0]].n_nodes), label(*first), last_ops(parts[first[0]]))
        for later, first in wanted
        if later[0] in parts and first[0] in parts
    ]


def _on_free(program: Program, held: int) -> Program:
    """`program` with all tasks of an SM pool on all but `held` of its slots."""
    if not held:
        return program
    pools = np.flatnonzero([name.endswith(f".{SM}") for name in program.pools.name])
    most = np.maximum(1, program.pools.slots[pools] - held)
    share = np.full(len(program.pools.node) + 1, -1, np.int32)
    share[pools] = np.arange(len(pools))
    none = np.zeros(0, np.int32)
    shares = Shares(pools.astype(np.int32), most.astype(np.int32), none, none, none)
    return replace(program, issuers=replace(program.issuers, share=share[program.issuers.pool]), shares=shares)


def block_times(forward: Program, backward: Program, kernels: BlockKernels, time_us: Callable[[Program], float], held: int = 0) -> BlockTimes:
    """The times of a block whose MoE layer runs `forward` and `backward`. `time_us`: of a Program, on an engine."""
    chains = {
        ATTENTION_F: kernels.attention, SHARED_F: kernels.shared, SHARED_B: kernels.shared_back, ATTENTION_B: kernels.attention_back,
        WEIGHTS: kernels.weights, HOST_F: kernels.host, HOST_B: kernels.host_back,
    }  # fmt: skip
    parts = {name: kernels_program(own, forward) for name, own in chains.items() if own} | {MOE_F: forward, MOE_B: backward}
    try:
        alone = [time_us(merged_block({name: parts[name] for name in way if name in parts})) for way in (FORWARD, BACKWARD)]
        pairs = [time_us(merged_block(parts, blocks, held)) for blocks in (STEADY - 1, STEADY)]
    except ProgramError as reason:
        raise ConfigError(f"merged block: {reason}") from None
    return BlockTimes(alone[0], alone[1], pairs[1] - pairs[0])
