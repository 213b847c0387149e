"""Operators of a block beside its MoE layer as ops of a Program: a chain of kernels on every GPU, on the SMs, on the links or on the host.

A kernel is DELAY ops of declared nature, a task per SM and turn. Its time is the time of the closed form: alone it takes as long, beside GEMMs and
kernels of other parts it shares the SMs task by task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.program import Discipline, Head, Kind, Nature, Operator, Program, ProgramBuilder, Tail, Template
from dysharp.program.verify import MAX_TASKS
from dysharp.steps.block import CONTEXT, TENSOR, Block
from dysharp.steps.cost import Cost
from dysharp.units import us_to_ps

TASK_US = 20.0
"""Least time of a task on an SM: longer kernels have several turns of tasks, so that others get SMs in between."""
HOST = "other"
SM = "sm"
LINKS = "links"
POOL = {Nature.COMPUTE: SM, Nature.COMMUNICATION: LINKS, Nature.HOST: "host"}
"""Nature of a kernel -> the pool of its GPU that it takes. All but the SMs have one slot."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, `us` on all SMs of a GPU, on its links, or on its host; [gpus] where GPUs differ."""

    name: str
    us: float | NDArray[np.float64]
    nature: Nature = Nature.COMPUTE


@dataclass(frozen=True, slots=True)
class BlockKernels:
    """Kernels of one MoE block beside its routed experts, in the order of a stream.

    `attention`: norms, attention, router. `shared`: shared experts. Each forward, backward, and gradients of weights. `host`: launches of a pass,
    which run ahead of the GPU.
    """

    attention: tuple[Kernel, ...]
    shared: tuple[Kernel, ...]
    attention_back: tuple[Kernel, ...]
    shared_back: tuple[Kernel, ...]
    weights: tuple[Kernel, ...]
    host: tuple[Kernel, ...] = ()
    host_back: tuple[Kernel, ...] = ()


def block_kernels(block: Block, number: int) -> BlockKernels:
    """Kernels of MoE layer `number`."""
    before, behind = (block.with_replays(pieces) for pieces in block.pieces(number))
    early = {**before, "router": behind.pop("router")}
    hosts = ((Kernel("launches", us, Nature.HOST),) if us > 0 else () for us in block.launches(number))
    return BlockKernels(
        _way(early, "forward"), _way(behind, "forward"), tuple(reversed(_way(early, "backward"))), tuple(reversed(_way(behind, "backward"))),
        _way({**early, **behind}, "weights"), *hosts,
    )  # fmt: skip


def _way(pieces: Mapping[str, Cost], way: str) -> tuple[Kernel, ...]:
    moved = (TENSOR, CONTEXT)
    found = ((name, getattr(cost, way)) for name, cost in pieces.items())
    return tuple(Kernel(name.replace(" ", "_"), us, Nature.COMMUNICATION if name in moved else Nature.COMPUTE) for name, us in found if us > 0)


def kernels_program(kernels: Sequence[Kernel], like: Program, task_us: float = TASK_US, n_sms: int = 1) -> Program:
    """A chain of `kernels` on every GPU of the machine of `like`, whose pools of SMs they take. `n_sms`: of a GPU, where `like` has no such pool."""
    gpus = np.arange(like.n_nodes, dtype=np.int32)
    named = {one.name: Operator(one.name, one.nature) for one in kernels}
    b = ProgramBuilder(
        like.hardware, like.n_nodes, like.classes, nets=like.nets, domain_nodes=like.domain_nodes,
        operators=(*named.values(), Operator(HOST, Nature.HOST)),
    )  # fmt: skip
    slots = sms_of(like, n_sms)
    names = sorted({POOL[one.nature] for one in kernels})
    pools = {name: [b.pool(g, slots[g] if name == SM else 1, name) for g in range(like.n_nodes)] for name in names}
    issuers = {
        name: np.array([b.issuer(g, Discipline.READY_FIFO, pool=pool, name=name) for g, pool in enumerate(own)], np.int32)
        for name, own in pools.items()
    }
    for i, kernel in enumerate(kernels):
        pool, each = POOL[kernel.nature], np.broadcast_to(kernel.us, like.n_nodes)
        sms = min(slots) if pool == SM else 1
        turns = max(1, min(int(each.max() / task_us), (MAX_TASKS - 1) // sms)) if pool == SM else 1
        for own in (gpus,) if np.ndim(kernel.us) == 0 else np.split(gpus, len(gpus)):
            duration = b.duration([0, max(1, us_to_ps(float(each[own[0]]) / turns))])
            template = b.template(Template(kernel.name, Kind.DELAY, kernel.name, "delay", tasks=turns * sms, duration=duration))
            b.ops(template, own, issuer=issuers[pool][own], rows=1)
        if i:
            b.edges(Tail.OP_DONE, (i - 1) * len(gpus) + gpus, Head.OP_ISSUE, i * len(gpus) + gpus)
    return b.build()


def sms_of(program: Program, n_sms: int = 1) -> list[int]:
    """SMs of every node, as its largest pool of SMs says; `n_sms` without one."""
    found = [0] * program.n_nodes
    for node, slots, name in zip(program.pools.node.tolist(), program.pools.slots.tolist(), program.pools.name, strict=True):
        if name.partition("].")[2].rpartition(".")[2] == SM:
            found[node] = max(found[node], slots)
    return [slots or n_sms for slots in found]


def last_ops(program: Program) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The last kernel of every GPU of a chain."""
    return program.n_ops - program.n_nodes + np.arange(program.n_nodes, dtype=np.int32)
