"""The tensors of a collective's Program, in the order of a Trace: a direct reading of `systems.building.collectives.steps`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dysharp.program import Kind, Program, Trace
from dysharp.systems.building.collectives.steps import FUNCTIONS, Chunks, chunks_of
from dysharp.workload.collective import Collective


def results(work: Collective, program: Program, trace: Trace, seed: int = 0) -> list[np.ndarray]:
    """`[gpus]` result of every GPU. An op reads at its issue; its members have the data at their delivery (pulls: at the end)."""
    chunks = chunks_of(work, program)
    held = _vectors(work, chunks, seed)
    events = []
    ops, ptr = program.ops, program.members.ptr
    for op in np.flatnonzero(np.isin([program.templates[t].fn for t in ops.template], FUNCTIONS)):
        template, members = program.templates[ops.template[op]], range(ptr[op], ptr[op + 1])
        if template.kind in (Kind.GET, Kind.PULL_REDUCE):
            events.append((int(trace.done[op]), 0, op, [int(ops.node[op])], template))
            continue
        events.append((int(trace.issue[op]), 1, op, [], template))
        events.extend((int(trace.member[m]), 0, op, [int(program.members.node[m])], template) for m in members)
    carried: dict[int, np.ndarray] = {}
    for _, is_read, op, to, template in sorted(events, key=lambda event: event[:3]):
        key, node = int(ops.key[op]), int(ops.node[op])
        members = [int(m) for m in program.members.node[ptr[op] : ptr[op + 1]]]
        if template.kind in (Kind.GET, Kind.PULL_REDUCE):
            carried[op] = np.sum([held[m][template.src][key] for m in members], axis=0)
        elif is_read:
            carried[op] = held[node][template.src][key]
        for member in to:
            buffer = held[member].setdefault(template.dst, {})
            before = buffer.get(key, held[member]["vector"].get(key)) if template.fn == "add" else 0
            buffer[key] = carried[op] + before
    return [np.concatenate([held[g]["result"][int(k)] for k in chunks.after(g)] or [np.zeros(0)]) for g in range(work.gpus)]


def _vectors(work: Collective, chunks: Chunks, seed: int) -> list[dict[str, dict[int, np.ndarray]]]:
    """The buffers before the first op."""
    held = []
    for gpu, vector in enumerate(work.inputs(seed)):
        mine = chunks.before(gpu)
        ends = np.append(0, np.cumsum(chunks.size[mine])) // work.element_bytes
        held.append({"vector": {int(k): vector[a:b] for k, (a, b) in zip(mine, pairwise(ends), strict=True)}})
    return held
