"""`Timeline`: tracks with slices, flows of tokens and counters, from the log of a run."""

import heapq

import numpy as np

from dysharp.analysis.phases import merged
from dysharp.analysis.timeline.counters import Counter, counters
from dysharp.analysis.timeline.flows import TokenFlow, steps_of, token_rows
from dysharp.analysis.timeline.links import ACKS, KINDS, POOL_GROUP, RESPONSE, RESULT, UP, Trains, link_groups, link_trains
from dysharp.analysis.timeline.record import Recording
from dysharp.base import I32, I64, Bools, ConfigError, Ints, Numbers, Tally, Texts, frozen
from dysharp.program import Kind, Operator, Program
from dysharp.workload import Routing

MOST_SLICES = 1_000_000
"""Slices of a Timeline above which neighbours of a track become one."""
_NO_PEER = 1 << 30


@frozen
class Window:
    """What a Timeline keeps. `start_ps`, `end_ps`: slices that overlap this time. `tokens`: slices of these tokens only, () = of all."""

    start_ps: int = 0
    end_ps: int = 1 << 62
    tokens: Numbers = ()


@frozen
class Track:
    """A row of slices that do not overlap. `group`: one of `links.GROUPS`, or the name of another pool."""

    gpu: int
    group: str
    name: str


@frozen
class Slices:
    """Slices sorted by track and start. Columns `[n]`, times in ps.

    `name`: index into `Timeline.names`. `token`: global token, or -1. `n_bytes`: wire bytes; of SM slices the rows; 0 = none.
    """

    track: I32
    start: I64
    end: I64
    name: I32
    token: I32
    n_bytes: I64

    def __len__(self) -> int:
        return len(self.track)


@frozen
class Timeline:
    """All that a viewer needs.

    `flows`: (id, places in `slices`), each in the order of time. `merged`: neighbours were joined. `operators`: those of the Program.
    """

    n_gpus: int
    time_ps: int
    tracks: tuple[Track, ...]
    names: Texts
    slices: Slices
    flows: tuple[TokenFlow, ...]
    counters: tuple[Counter, ...]
    merged: bool
    operators: tuple[Operator, ...]
    window: Window = Window()

    def sums_ps(self) -> I64:
        """`[n_tracks]` length of all slices of each track inside the window, ps."""
        out, s = np.zeros(len(self.tracks), np.int64), self.slices
        np.add.at(out, s.track, np.maximum(0, np.minimum(s.end, self.window.end_ps) - np.maximum(s.start, self.window.start_ps)))
        return out


class _Draft:
    """Slices before they are sorted, with the names and tracks seen so far."""

    def __init__(self) -> None:
        self.tracks: dict[Track, int] = {}
        self.names: Tally = {}
        self.parts: list[tuple[Ints, ...]] = []
        self.n = 0

    def track(self, gpu: int, group: str, name: str) -> int:
        return self.tracks.setdefault(Track(gpu, group, name), len(self.tracks))

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def add(self, *columns: Ints) -> int:
        """Add (track, start, end, name, token, n_bytes). Returns the place of the first."""
        first = self.n
        self.parts.append(columns)
        self.n += len(columns[0])
        return first


def make_timeline(
    run: Recording, routing: Routing | None, *, follow: Numbers = (), window: Window | None = None, most_slices: int = MOST_SLICES
) -> Timeline:
    """The Timeline of a run that served `routing`; None: it served no Routing, or is a merge. `follow`: global tokens whose way is drawn as flows.

    Raises ConfigError for tokens of a merge: a token belongs to one of its parts.
    """
    window = Window() if window is None else window
    if run.program.sections and (follow or window.tokens or routing is not None):
        raise ConfigError("timeline: found a Routing or tokens for a merge of Programs, expected none (a token belongs to one part)")
    draft, p = _Draft(), run.program
    up, down = link_trains(run)
    _operators(draft, run)
    first_sm = _sms(draft, run, np.zeros(0, np.int32) if routing is None else routing.placement.slot_expert)
    first = [_links(draft, p, trains, side) for side, trains in enumerate((up, down))]
    steps = steps_of(run, follow, 1 if routing is None else routing.tokens_per_gpu, (up, down), (first[0], first[1]), first_sm)
    columns = [np.concatenate([part[i] for part in draft.parts]) for i in range(6)]
    keep = (columns[1] < window.end_ps) & (columns[2] > window.start_ps)
    if window.tokens:
        keep &= np.isin(columns[4], window.tokens) | token_rows(run, window.tokens, first_sm, len(keep))
    order = np.flatnonzero(keep)
    order = order[np.lexsort((columns[1][order], columns[0][order]))]
    slices = Slices(*(c[order].astype(t) for c, t in zip(columns, (np.int32, np.int64, np.int64, np.int32, np.int32, np.int64), strict=True)))
    place = np.full(draft.n, -1, np.int64)
    place[order] = np.arange(len(order))
    merged = len(slices) > most_slices
    if merged:
        followed = np.zeros(draft.n, np.bool_)
        followed[[i for flow in steps for i in flow.slices]] = True
        slices, joined = _merged(slices, run.trace.time_ps * len(draft.tracks) // most_slices + 1, followed[order])
        place[order] = joined
    flows = tuple(TokenFlow(f.id, f.token, f.gpu, tuple(dict.fromkeys(int(place[s]) for s in f.slices if place[s] >= 0))) for f in steps)
    return Timeline(
        p.n_nodes, run.trace.time_ps, tuple(draft.tracks), tuple(draft.names), slices, tuple(f for f in flows if len(f.slices) > 1),
        counters(run, up, down), merged, p.operators, window,
    )  # fmt: skip


def _merged(s: Slices, bin_ps: int, alone: Bools) -> tuple[Slices, I64]:
    """Slices of a track that begin in the same bin of time as one slice of their summed length; and the new place of each.

    The slice begins with the first of them and has its name. The sum of a track does not change.
    Slices marked `alone` stay as they are: viewers order the steps of a flow by the begin of its slices.
    """
    new = alone.copy()
    new[:1] = True
    new[1:] |= alone[:-1] | (s.track[1:] != s.track[:-1]) | (s.start[1:] // bin_ps != s.start[:-1] // bin_ps)
    first = np.flatnonzero(new)
    single = np.diff(np.append(first, len(s))) == 1
    length, n_bytes = (np.add.reduceat(column, first) for column in (s.end - s.start, s.n_bytes))
    token = np.where(single, s.token[first], -1).astype(np.int32)
    return Slices(s.track[first], s.start[first], s.start[first] + length, s.name[first], token, n_bytes), np.cumsum(new) - 1


def _operators(draft: _Draft, run: Recording) -> None:
    """A slice while any op of the operator is between its issue and its completion on the GPU."""
    p, t = run.program, run.trace
    names, operator = p.operator_names, p.template_operator()
    ops = np.flatnonzero((p.kinds() != Kind.JOIN) & (t.issue >= 0))
    key = p.ops.node[ops] * len(names) + operator[p.ops.template[ops]]
    order = np.argsort(key, kind="stable")
    ptr = np.searchsorted(key[order], np.arange(p.n_nodes * len(names) + 1))
    for gpu in range(p.n_nodes):
        for k, name in enumerate(names):
            group = gpu * len(names) + k
            mine = ops[order[ptr[group] : ptr[group + 1]]]
            start, end = merged(t.issue[mine], t.done[mine])
            if len(start):
                n, text = len(start), draft.name(name)
                none = np.zeros(n, np.int64)
                draft.add(np.full(n, draft.track(gpu, "operators", name)), start, end, np.full(n, text), none - 1, none)


def _sms(draft: _Draft, run: Recording, slot_expert: I32) -> I64:
    """Tasks on pools, in lanes. Returns `[n_ops]` the place of each op's slice, -1 = none."""
    p, t = run.program, run.trace
    place = np.full(p.n_ops, -1, np.int64)
    pool = p.issuers.pool[p.ops.issuer]
    ops = np.flatnonzero((p.ops.issuer >= 0) & (pool >= 0) & (t.end > t.start))
    ops = ops[np.lexsort((t.start[ops], pool[ops]))]
    if not len(ops):
        return place
    expert = _tile_expert(p, slot_expert)
    computes = np.array([x.kind is Kind.COMPUTE for x in p.templates], np.bool_)[p.ops.template[ops]]
    code = np.where(computes, expert[np.minimum(p.ops.key[ops], len(expert) - 1)], -1)
    lanes = _lanes(pool[ops], t.start[ops], t.end[ops])
    tracks = np.array([draft.track(*_lane_track(p, int(q), int(lane))) for q, lane in zip(pool[ops], lanes, strict=True)])
    n = int(expert.max()) + 2
    found, inverse = np.unique(p.ops.template[ops] * np.int64(n) + code + 1, return_inverse=True)
    texts = [p.templates[c // n].name + (f" expert {c % n - 1}" if c % n else "") for c in found.tolist()]
    names = np.array([draft.name(text) for text in texts])[inverse]
    first = draft.add(tracks, t.start[ops], t.end[ops], names, np.full(len(ops), -1), p.ops.rows[ops].astype(np.int64))
    place[ops] = first + np.arange(len(ops))
    return place


def _tile_expert(p: Program, slot_expert: I32) -> I32:
    """`[n_tiles + 1]` expert of each tile, -1 = none."""
    of_region = np.full(p.n_regions, -1, np.int32)
    experts = np.flatnonzero(p.tiled_regions())
    starts = np.array([section.regions.start for section in p.sections] or [0])
    first = np.searchsorted(experts, starts)[np.searchsorted(starts, experts, side="right") - 1]  # of the part of each region
    of_region[experts] = slot_expert[: len(experts)] if len(slot_expert) >= len(experts) else np.arange(len(experts)) - first
    return np.append(np.repeat(of_region, np.diff(p.regions.tile_ptr)), np.int32(-1)).astype(np.int32)


def _lane_track(p: Program, pool: int, lane: int) -> tuple[int, str, str]:
    kind = p.pools.name[pool].partition("].")[2]
    group = POOL_GROUP if kind == "sm" else kind or "pool"
    return int(p.pools.node[pool]), group, f"{group} {lane}"


def _lanes(pool: Ints, start: I64, end: I64) -> I64:
    """The lowest lane that is free for each interval; intervals come by pool and start."""
    out = np.zeros(len(start), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    of, used = -1, 0
    for i, (q, begin, until) in enumerate(zip(pool.tolist(), start.tolist(), end.tolist(), strict=True)):
        if q != of:
            busy, free, of, used = [], [], q, 0
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, used)
            used += 1
        lane = heapq.heappop(free)
        out[i] = lane
        heapq.heappush(busy, (until, lane))
    return out


def _links(draft: _Draft, p: Program, trains: Trains, side: int) -> int:
    """The trains of one direction. Returns the place of the first."""
    of_template = p.template_operator()
    kind = np.where(trains.kind == ACKS, ACKS, of_template[p.ops.template[trains.op]] * len(KINDS) + trains.kind) if p.n_ops else trains.kind
    n_kinds = len(p.operators) * len(KINDS)
    found, inverse = np.unique(trains.port * n_kinds + kind, return_inverse=True)
    groups = [names[side] for names in link_groups(p)]
    places = ((*divmod(code // n_kinds, p.n_nodes), code % n_kinds) for code in found.tolist())
    tracks = [draft.track(node, groups[net], _train_kind(p, code)) for net, node, code in places]
    token = np.where(trains.op >= 0, p.ops.key[trains.op], -1)
    return draft.add(np.array(tracks, np.int64)[inverse], trains.start, trains.end, _train_names(draft, p, trains, side), token, trains.n_bytes)


def _train_kind(p: Program, code: int) -> str:
    operator, kind = divmod(code, len(KINDS))
    return KINDS[ACKS] if kind == ACKS else f"{p.operator_names[operator]} {KINDS[kind]}"


def _train_names(draft: _Draft, p: Program, trains: Trains, side: int) -> I64:
    """Where each train goes or comes from: one GPU, or how many."""
    count = np.diff(p.members.ptr)[trains.op]
    only = p.members.node[p.members.ptr[:-1][trains.op] % max(1, p.n_members)]
    # Up, an op's own train goes to all its members. Down, a result comes from all of them.
    all_members = (trains.kind != RESPONSE) if side == UP else (trains.kind == RESULT)
    n = np.where(all_members, count, 1)
    peer = np.where(all_members, only, p.ops.node[trains.op])
    code = np.where(trains.kind == ACKS, -_NO_PEER, np.where(n == 1, peer, -n))
    found, inverse = np.unique(code, return_inverse=True)
    word = "to" if side == UP else "from"
    texts = [KINDS[ACKS] if c == -_NO_PEER else f"{word} GPU {c}" if c >= 0 else f"{word} {-c} GPUs" for c in found.tolist()]
    return np.array([draft.name(text) for text in texts], np.int64)[inverse]
