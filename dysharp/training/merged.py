"""A MoE block as a merged Program, and the overlapped pair of a forward block beside a backward block of another micro-batch (0022).

Operators beside the MoE layer are a chain of kernels on every GPU, on the SMs, on the links or on the host. A kernel is DELAY ops of declared
nature, a task per SM and wave. Its time is the time of the closed form: alone it takes as long, beside GEMMs and kernels of other parts it shares the
SMs task by task.

Order of a pair: DualPipe's, which is Megatron's overlap of EP communication with delayed gradients of weights. Attention (F) and the MoE layer (B)
begin together; then the MoE layer (F); attention (B) follows the MoE layer (B); gradients of weights fill what is left.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dysharp.base import F64, ConfigError, ProgramError, frozen, us_to_ps
from dysharp.model.operators import CONTEXT, TENSOR
from dysharp.program import Discipline, Head, Kind, Nature, Operator, Program, ProgramBuilder, Tail, Template
from dysharp.program.merge import Cross, Part, merge
from dysharp.program.tables import Shares
from dysharp.program.verify import MAX_TASKS
from dysharp.training.block import Block
from dysharp.training.cost import BlockTimes, EpTimes, PassCost

TASK_US = 20.0
"""Least time of a task on an SM: longer kernels have several waves of tasks, so that others get SMs in between."""
HOST = "other"
SM = "sm"
LINKS = "links"
POOL = {Nature.COMPUTE: SM, Nature.COMMUNICATION: LINKS, Nature.HOST: "host"}
"""Nature of a kernel -> the pool of its GPU that it takes. All but the SMs have one slot."""


@frozen
class MergedKernel:
    """One kernel, `us` on all SMs of a GPU, on its links, or on its host; [gpus] where GPUs differ."""

    name: str
    us: float | F64
    nature: Nature = Nature.COMPUTE


@frozen
class _BlockKernels:
    """Kernels of one MoE block beside its routed experts, in the order of a stream.

    `attention`: norms, attention, router. `shared`: shared experts. Each forward, backward, and gradients of weights. `host`: launches of a pass,
    which run ahead of the GPU.
    """

    attention: tuple[MergedKernel, ...]
    shared: tuple[MergedKernel, ...]
    attention_back: tuple[MergedKernel, ...]
    shared_back: tuple[MergedKernel, ...]
    weights: tuple[MergedKernel, ...]
    host: tuple[MergedKernel, ...] = ()
    host_back: tuple[MergedKernel, ...] = ()


def block_kernels(block: Block, number: int, ep: EpTimes | None = None) -> _BlockKernels:
    """Kernels of MoE layer `number`. `ep`: as in `Block.launches`."""
    before, behind = (block.with_replays(pieces) for pieces in block.pieces(number))
    early = {**before, "router": behind.pop("router")}
    hosts = ((MergedKernel("launches", us, Nature.HOST),) if us > 0 else () for us in block.launches(number, ep))
    return _BlockKernels(
        _way(early, "forward"), _way(behind, "forward"), tuple(reversed(_way(early, "backward"))), tuple(reversed(_way(behind, "backward"))),
        _way({**early, **behind}, "weights"), *hosts,
    )  # fmt: skip


def _way(pieces: Mapping[str, PassCost], way: str) -> tuple[MergedKernel, ...]:
    moved = (TENSOR, CONTEXT)
    found = ((name, getattr(cost, way)) for name, cost in pieces.items())
    return tuple(MergedKernel(name.replace(" ", "_"), us, Nature.COMMUNICATION if name in moved else Nature.COMPUTE) for name, us in found if us > 0)


def kernels_program(kernels: Sequence[MergedKernel], like: Program, task_us: float = TASK_US, n_sms: int = 1) -> Program:
    """A chain of `kernels` on every GPU, on the pools of SMs of the Program `like`. `n_sms`: of a GPU, where `like` has no such pool."""
    gpus = np.arange(like.n_nodes, dtype=np.int32)
    named = {one.name: Operator(one.name, one.nature) for one in kernels}
    b = ProgramBuilder(
        like.hardware, like.n_nodes, like.classes, nets=like.nets, domain_nodes=like.domain_nodes,
        operators=(*named.values(), Operator(HOST, Nature.HOST)),
    )  # fmt: skip
    slots = _sms_of(like, n_sms)
    names = sorted({POOL[one.nature] for one in kernels})
    pools = {name: [b.pool(g, slots[g] if name == SM else 1, name) for g in range(like.n_nodes)] for name in names}
    issuers = {
        name: np.array([b.issuer(g, Discipline.READY_FIFO, pool=pool, name=name) for g, pool in enumerate(own)], np.int32)
        for name, own in pools.items()
    }
    for i, kernel in enumerate(kernels):
        pool, each = POOL[kernel.nature], np.broadcast_to(kernel.us, like.n_nodes)
        sms = min(slots) if pool == SM else 1
        waves = max(1, min(int(each.max() / task_us), (MAX_TASKS - 1) // sms)) if pool == SM else 1
        for own in (gpus,) if np.ndim(kernel.us) == 0 else np.split(gpus, len(gpus)):
            duration = b.duration([0, max(1, us_to_ps(float(each[own[0]]) / waves))])
            template = b.template(Template(kernel.name, Kind.DELAY, kernel.name, "delay", tasks=waves * sms, duration=duration))
            b.ops(template, own, issuer=issuers[pool][own], rows=1)
        if i:
            b.edges(Tail.OP_DONE, (i - 1) * len(gpus) + gpus, Head.OP_ISSUE, i * len(gpus) + gpus)
    return b.build()


def _sms_of(program: Program, n_sms: int = 1) -> list[int]:
    """SMs of every node, as its largest pool of SMs says; `n_sms` without one."""
    found = [0] * program.n_nodes
    for node, slots, name in zip(program.pools.node.tolist(), program.pools.slots.tolist(), program.pools.name, strict=True):
        if name.partition("].")[2].rpartition(".")[2] == SM:
            found[node] = max(found[node], slots)
    return [slots or n_sms for slots in found]


def _last_ops(program: Program) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The last kernel of every GPU of a chain."""
    return program.n_ops - program.n_nodes + np.arange(program.n_nodes, dtype=np.int32)


PARTS = ATTENTION_F, MOE_B, SHARED_B, MOE_F, SHARED_F, ATTENTION_B, WEIGHTS, HOST_F, HOST_B = (
    "attention_f", "moe_b", "shared_b", "moe_f", "shared_f", "attention_b", "weights", "host_f", "host_b",
)  # fmt: skip
ORDER = dict(zip(PARTS, "abcdefghi", strict=True))
"""Part of a block -> its place in the order of the SMs: parts are served in the order of their labels."""
FORWARD, BACKWARD = (ATTENTION_F, MOE_F, SHARED_F, HOST_F), (MOE_B, SHARED_B, ATTENTION_B, WEIGHTS, HOST_B)
STEADY = 2
"""Pairs that run one behind the other; the time of a pair is what the last one adds."""


def label(part: str, block: int = 0) -> str:
    """The label of a part of block `block` in a merge."""
    return f"p{block}{ORDER[part]}_{part}"


def _merged_block(parts: Mapping[str, Program], blocks: int = 1, held: int = 0) -> Program:
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
        Cross(label(*later), np.arange(parts[later[0]].n_nodes), label(*first), _last_ops(parts[first[0]]))
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


def block_times(forward: Program, backward: Program, kernels: _BlockKernels, time_us: Callable[[Program], float], held: int = 0) -> BlockTimes:
    """The times of a block whose MoE layer runs `forward` and `backward`. `time_us`: of a Program, on an engine."""
    chains = {
        ATTENTION_F: kernels.attention, SHARED_F: kernels.shared, SHARED_B: kernels.shared_back, ATTENTION_B: kernels.attention_back,
        WEIGHTS: kernels.weights, HOST_F: kernels.host, HOST_B: kernels.host_back,
    }  # fmt: skip
    parts = {name: kernels_program(own, forward) for name, own in chains.items() if own} | {MOE_F: forward, MOE_B: backward}
    try:
        alone = [time_us(_merged_block({name: parts[name] for name in way if name in parts})) for way in (FORWARD, BACKWARD)]
        pairs = [time_us(_merged_block(parts, blocks, held)) for blocks in (STEADY - 1, STEADY)]
    except ProgramError as reason:
        raise ConfigError(f"merged block: {reason}") from None
    return BlockTimes(alone[0], alone[1], pairs[1] - pairs[0])
