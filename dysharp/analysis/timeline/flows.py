"""The way of single tokens: dispatch up and down, the tiles that hold the token's rows, combine up and down."""

import numpy as np

from dysharp.analysis.timeline.links import RESPONSE, Trains
from dysharp.analysis.timeline.record import Recording
from dysharp.base import I64, Bools, Ints, Numbers, by_key, frozen
from dysharp.program import PUSHES, Kind, Program, owners

IDS_PER_TOKEN = 4096  # flows of a token have ids of their own, one for each GPU


@frozen
class TokenFlow:
    """The slices of one token on its way to the experts of one GPU and back, by their start."""

    id: int
    token: int
    gpu: int
    slices: Numbers


def steps_of(run: Recording, tokens: Numbers, tokens_per_gpu: int, links: tuple[Trains, Trains], first: tuple[int, int], sm: I64) -> list[TokenFlow]:
    """A flow for each token and each GPU with its rows. `first`: place of the first slice of each direction; `sm`: of each op."""
    p, t = run.program, run.trace
    if not tokens or not p.n_ops:
        return []
    wanted = np.isin(p.ops.key, tokens) & (p.ops.wire >= 0) & (np.diff(p.members.ptr) > 0)
    tiles = _tiles_of(run, wanted)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    shared: dict[int, list[tuple[int, int]]] = {}
    for trains, begin in zip(links, first, strict=True):
        for i in np.flatnonzero((trains.op >= 0) & wanted[trains.op]).tolist():
            op, member = int(trains.op[i]), int(trains.member[i])
            step = int(trains.start[i]), begin + i
            token = int(p.ops.key[op])
            gpu = _expert_gpu(p, op, member, int(trains.kind[i]))
            (shared.setdefault(token, []) if gpu < 0 else found.setdefault((token, gpu), [])).append(step)
    for (token, gpu), ops in tiles.items():
        found.setdefault((token, gpu), []).extend((int(t.start[o]), int(sm[o])) for o in ops if sm[o] >= 0)
    flows = []
    for (token, gpu), steps in sorted(found.items()):
        home = gpu == token // tokens_per_gpu
        way = sorted(steps + ([] if home else shared.get(token, [])))
        flows.append(TokenFlow(token * IDS_PER_TOKEN + gpu + 1, token, gpu, tuple(place for _, place in way)))
    return flows


def _expert_gpu(p: Program, op: int, member: int, kind: int) -> int:
    """The GPU of the experts that a train serves; -1 = several GPUs share it."""
    template = p.templates[p.ops.template[op]]
    if template.operator == "combine" and template.kind in PUSHES:
        return int(p.ops.node[op])
    if member >= 0 or kind == RESPONSE:
        return int(p.members.node[member])
    if p.members.ptr[op + 1] - p.members.ptr[op] == 1:
        return int(p.members.node[p.members.ptr[op]])
    return -1


def _tiles_of(run: Recording, wanted: Bools) -> dict[tuple[int, int], list[int]]:
    """{(token, GPU): COMPUTE ops on tiles that hold rows of the token} for the dispatched rows of the ops `wanted`."""
    p = run.program
    tile, token = _row_tiles(run, np.unique(p.ops.key[wanted]))
    computes = np.flatnonzero((p.kinds() == Kind.COMPUTE) & np.isin(p.ops.key, tile))
    by_tile = by_key((int(p.ops.key[o]), o) for o in computes.tolist())
    out: dict[tuple[int, int], list[int]] = {}
    for i, who in zip(tile.tolist(), token.tolist(), strict=True):
        for o in by_tile.get(i, []):
            ops = out.setdefault((who, int(p.ops.node[o])), [])
            if o not in ops:
                ops.append(o)
    return out


def _row_tiles(run: Recording, tokens: Ints) -> tuple[I64, Ints]:
    """(tile, token) of each row of `tokens` in the tiled regions."""
    p, r = run.program, run.program.regions
    region = owners(r.row_ptr)
    rows = np.flatnonzero(p.tiled_regions()[region] & np.isin(r.row_key, tokens))
    of = region[rows]
    return r.tile_ptr[of] + run.trace.row_slot[rows] // r.tile_rows[of], r.row_key[rows]


def token_rows(run: Recording, tokens: Numbers, sm: I64, n: int) -> Bools:
    """`[n]` bool: slices of COMPUTE ops on tiles that hold rows of `tokens`."""
    out = np.zeros(n, np.bool_)
    tile, _ = _row_tiles(run, np.array(tokens))
    p = run.program
    ops = np.flatnonzero((p.kinds() == Kind.COMPUTE) & np.isin(p.ops.key, tile) & (sm >= 0))
    out[sm[ops]] = True
    return out
