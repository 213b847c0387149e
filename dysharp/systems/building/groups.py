"""Multicast groups that are made before a pass, and how the tokens of a Routing use them (docs/design/0041-beyond-the-papers.md)."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import combinations

import numpy as np

from dysharp.base import I64, Bools
from dysharp.program import frozen, place_in
from dysharp.workload import Routing, needed_gpus

FEW, HISTORY, ROUNDS, CHUNK = 10, 8192, 6, 4096
"""Largest number of GPUs for which every set may become a group; tokens of a history; rounds in which groups are chosen; tokens covered at once."""

Set = tuple[int, ...]
Group = tuple[int, Set]
"""(owner, or -1: every member may issue; members, the issuer included)."""


@frozen
class Wanted:
    """What groups are made for and how tokens take them.

    `most`: places for groups. `sent`: the issuer's copy goes to the switch and back, and a group serves all its members; otherwise a group has one
    owner. `tokens`: groups are made for the tokens of the pass, otherwise for tokens drawn from the loads of the experts. `exact`: each token has the
    fewest rows, up to `FEW` GPUs; otherwise it takes the largest group that fits, again and again. `capacity`: percent of the use in the history
    that a (source, group) has places for, 0 = any number.
    """

    most: int
    sent: bool = True
    tokens: bool = False
    exact: bool = False
    capacity: int = 0


@frozen
class _Made:
    """Groups, the tokens of the history that use each, by (source, group), and all its tokens."""

    groups: tuple[Group, ...]
    uses: Counter[tuple[int, int]]
    tokens: int


def pieces(routing: Routing, wanted: Wanted) -> I64:
    """`[tokens, gpus]` how the token's row gets to each GPU: 0 by itself (or not at all), i > 0 in the token's i-th multicast."""
    need, source = needed_gpus(routing), np.arange(routing.n_tokens) // routing.tokens_per_gpu
    if wanted.tokens:
        made = _made(_history(need, source), routing.n_gpus, wanted)
    else:
        loads = np.bincount(routing.slot[routing.slot >= 0], minlength=routing.placement.n_slots)
        made = _from_loads(loads.tobytes(), routing.n_gpus, routing.topk, wanted)
    piece, group = _cover(need, source, made.groups, wanted)
    share = wanted.capacity / 100 * routing.n_tokens / max(1, made.tokens)
    for i in range(1, group.shape[1] if wanted.capacity else 0):
        taken = np.flatnonzero(group[:, i] >= 0)
        use = list(zip(source[taken].tolist(), group[taken, i].tolist(), strict=True))
        places = np.ceil([share * made.uses[one] for one in use])
        late = taken[place_in(source[taken] * len(made.groups) + group[taken, i]) >= places]
        piece[late] = np.where(piece[late] == i, 0, piece[late])
    return piece


def multicasts(piece: I64, routing: Routing) -> I64:
    """`[tokens]` rows that multicasts save a token on its way up: other GPUs in each of them, less one."""
    other = needed_gpus(routing)
    other[np.arange(routing.n_tokens), np.arange(routing.n_tokens) // routing.tokens_per_gpu] = False
    saved = [np.maximum(((piece == i) & other).sum(axis=1) - 1, 0) for i in range(1, int(piece.max(initial=0)) + 1)]
    return np.asarray(sum(saved, np.zeros(routing.n_tokens, np.int64)))


@lru_cache(maxsize=256)
def _from_loads(loads: bytes, n_gpus: int, topk: int, wanted: Wanted) -> _Made:
    """Groups for tokens that choose experts independently, by their loads."""
    load = np.frombuffer(loads, np.int64)
    rng = np.random.default_rng(np.random.SeedSequence([n_gpus, topk]))
    drawn = np.log(np.maximum(load, 1e-9)) + rng.gumbel(size=(HISTORY, len(load)))
    slot = np.argsort(-drawn, axis=1)[:, : min(topk, int((load > 0).sum()))]
    need = np.zeros((HISTORY, n_gpus), bool)
    need[np.arange(HISTORY)[:, None], slot // (len(load) // n_gpus)] = True
    return _made(_history(need, np.arange(HISTORY) % n_gpus), n_gpus, wanted)


History = tuple[tuple[tuple[int, Set], int], ...]


def _history(need: Bools, source: I64) -> History:
    return tuple(sorted(Counter(_sets(need, source)).items()))


def _sets(need: Bools, source: I64) -> Iterator[tuple[int, Set]]:
    """(source, GPUs that the token needs and the source) of each token."""
    for row, own in zip(need.tolist(), source.tolist(), strict=True):
        yield own, tuple(g for g, needed in enumerate(row) if needed or g == own)


@lru_cache(maxsize=256)
def _made(history: History, n_gpus: int, wanted: Wanted) -> _Made:
    """The groups that save the most rows of `history`. Each round joins multicasts and unicasts that tokens have by earlier groups."""
    cost = 1 + wanted.sent  # rows of a multicast on the links of its source
    largest, every = n_gpus if n_gpus <= FEW else cost + 2, (1 << n_gpus) - 1
    source = np.array([own for (own, _), _ in history], np.int64)
    need = np.zeros((len(history), n_gpus), bool)
    for i, ((_, gpus), _) in enumerate(history):
        need[i, list(gpus)] = True
    groups: list[Group] = []
    piece, group = _cover(need, source, (), wanted)
    for round_ in range(ROUNDS):
        saved: Counter[int] = Counter()  # bits of the GPUs of a group, and above them its owner and 1
        for ((own, gpus), times), way in zip(history, piece.tolist(), strict=True):
            others = [g for g in gpus if g != own]
            units = [(1 << g, 1) for g in others if not way[g]]
            units += [(sum(1 << g for g in others if way[g] == i), cost) for i in range(1, max(way, default=0) + 1)]
            with_own = 1 << own | (0 if wanted.sent else own + 1) << n_gpus
            for n in range(2, min(len(units), largest - 1) + 1):
                for some in combinations(units, n):
                    rows, bits = -cost, with_own
                    for more, row in some:
                        rows, bits = rows + row, bits | more
                    if rows > 0 and (bits & every).bit_count() <= largest:
                        saved[bits] += times * rows
        named = (((bits >> n_gpus) - 1, tuple(g for g in range(n_gpus) if bits >> g & 1)) for bits in saved)
        best = sorted(zip(named, saved.values(), strict=True), key=lambda one: (-one[1], one[0]))
        groups += [one for one, _ in best[: -(-(wanted.most - len(groups)) // (ROUNDS - round_))]]
        piece, group = _cover(need, source, tuple(groups), wanted)
    uses: Counter[tuple[int, int]] = Counter()
    for i, ((own, _), times) in enumerate(history):
        for used in group[i, 1:][group[i, 1:] >= 0].tolist():
            uses[own, used] += times
    return _Made(tuple(groups), uses, sum(times for _, times in history))


def _cover(need: Bools, source: I64, groups: tuple[Group, ...], wanted: Wanted) -> tuple[I64, I64]:
    """(`pieces`, `[tokens, 1 + multicasts]` the group of each multicast, -1 = none)."""
    n_gpus = need.shape[1]
    piece, used = np.zeros(need.shape, np.int64), [np.full(len(need), -1)]
    if wanted.exact and n_gpus <= FEW:
        kinds, which = np.unique(np.column_stack([source, need]), axis=0, return_inverse=True)
        chosen = [_fewest(int(row[0]), groups, wanted.sent)(frozenset(np.flatnonzero(row[1:]).tolist()) - {int(row[0])})[1] for row in kinds]
        used += [np.array([one[i] if i < len(one) else -1 for one in chosen])[which.ravel()] for i in range(max(map(len, chosen), default=0))]
    elif groups:
        members = np.zeros((len(groups), n_gpus), np.float32)
        for i, (_, gpus) in enumerate(groups):
            members[i, list(gpus)] = 1
        owner, size = np.array([own for own, _ in groups]), members.sum(axis=1)
        for first in range(0, len(need), CHUNK):
            part = slice(first, first + CHUNK)
            rest, own, i = need[part].astype(np.float32), source[part], 0
            rest[np.arange(len(rest)), own] = 1
            may = (members.T[own] > 0) & ((owner < 0) | (owner == own[:, None]))
            while True:
                gain = np.where(may & (rest @ members.T == size), size, 0)
                best = gain.argmax(axis=1)
                hit = np.flatnonzero(gain[np.arange(len(rest)), best] > 0)
                if not len(hit):
                    break
                i += 1
                if i == len(used):
                    used.append(np.full(len(need), -1))
                used[i][first + hit] = best[hit]
                rest[hit] *= 1 - members[best[hit]]
                rest[np.arange(len(rest)), own] = 1
    for i, group in enumerate(used[1:], 1):
        for token in np.flatnonzero(group >= 0).tolist():
            piece[token, list(groups[group[token]][1])] = i
    own_pair = np.arange(len(need)), source
    piece[own_pair] = np.minimum(piece[own_pair], 1)  # the source's own rows go with its first multicast
    return np.where(need, piece, 0), np.stack(used, axis=1)


@lru_cache(maxsize=256)
def _fewest(own: int, groups: tuple[Group, ...], sent: bool) -> Callable[[frozenset[int]], tuple[int, Set]]:
    """A function of the other GPUs that a token of `own` needs: (rows, groups) of the cover with the fewest rows on the links of the source."""
    mine = [(i, frozenset(gpus) - {own}) for i, (owner, gpus) in enumerate(groups) if own in gpus and owner in (-1, own)]

    @cache
    def best(left: frozenset[int]) -> tuple[int, Set]:
        if not left:
            return 0, ()
        first = min(left)
        rows, used = best(left - {first})
        ways = [(rows + 1, used)]
        for i, gpus in mine:
            if first in gpus and gpus <= left:
                rows, used = best(left - gpus)
                ways.append((rows + 1 + sent, tuple(sorted((*used, i)))))
        return min(ways)

    return best
