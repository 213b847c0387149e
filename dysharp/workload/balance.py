"""Balance in each micro-batch: the exact plan of replicas (MoonEP), and who chooses among the replicas of an expert."""

from collections.abc import Callable

import numpy as np

from dysharp.base import I32, I64, ConfigError, Ints
from dysharp.specs import choice_int, choice_str

Chooses = Callable[[I32, I32, I32, int, int], I32]
"""(expert [tokens, topk], slots of every expert [n_experts, most] padded with -1, their number [n_experts], GPUs, slots of a GPU) -> slot."""


def exact_moves(load: Ints, n_gpus: int, most: int, least: int = 1) -> list[tuple[int, int, int]]:
    """(expert, GPU, rows) of every replica, so that all GPUs get equally many rows, one more where they do not divide.

    The GPU with the most rows too many fills the one with the most room, hottest expert first, even if it then has room itself: a GPU imports
    from one home only, at most `most` experts with `least` rows each, and a plan has at most `n_gpus` rounds. `load`: [n_experts] rows of each
    expert, at home on GPU expert // (n_experts / n_gpus).
    """
    left, per = load.astype(np.int64), load.size // n_gpus
    held = left.reshape(n_gpus, per).sum(axis=1)
    whole, rest = divmod(int(held.sum()), n_gpus)
    room = whole - held
    room[np.argsort(room, kind="stable")[:rest]] += 1
    moves = []
    for _ in range(n_gpus):
        giver, taker = int(room.argmin()), int(room.argmax())
        if room[taker] <= 0:
            break
        own = left[giver * per : (giver + 1) * per]
        for local in np.argsort(-own, kind="stable")[:most].tolist():
            rows = int(min(own[local], room[taker]))
            if rows >= least:
                moves.append((giver * per + local, taker, rows))
                own[local] -= rows
                room[[giver, taker]] += rows, -rows
        room[taker] = min(0, room[taker])  # with too few slots it stays below its share
    return moves


def exact_slots(load: Ints, n_gpus: int, most: int | None, least: int) -> tuple[I32, I64, int]:
    """The slots of `exact_moves`: (expert of each [n_slots], -1 = empty; rows of each [n_slots]; slots of a GPU behind those of its own experts).

    Raises ConfigError where GPUs do not divide the experts.
    """
    if load.size % n_gpus:
        raise ConfigError(f"placement exact: found {load.size} experts on {n_gpus} GPUs, expected a multiple")
    own = np.arange(load.size, dtype=np.int32).reshape(n_gpus, -1)
    moves = exact_moves(load, n_gpus, own.shape[1] if most is None else most, least)
    taken = [[(expert, rows) for expert, to, rows in moves if to == gpu] for gpu in range(n_gpus)]
    spare = max(map(len, taken))
    slot_expert, quota = (np.pad(own, ((0, 0), (0, spare)), constant_values=-1), np.pad(load.reshape(n_gpus, -1), ((0, 0), (0, spare))))
    for gpu, imports in enumerate(taken):
        for i, (expert, rows) in enumerate(imports):
            slot_expert[gpu, own.shape[1] + i], quota[gpu, own.shape[1] + i] = expert, rows
            quota[expert // own.shape[1], expert % own.shape[1]] -= rows
    return slot_expert.ravel(), quota.ravel().astype(np.int64), spare


def by_quota(expert: I32, quota: I64, slots: I32, copies: I32, n_gpus: int, slots_per_gpu: int) -> I32:
    """[tokens, topk] slots that get `quota` rows each: first from tokens of their own GPU, then all replicas evenly in token order."""
    slot = np.append(slots[:, 0], np.int32(-1))[expert]
    source = np.arange(len(expert)) // max(1, len(expert) // n_gpus)
    for one in np.flatnonzero(copies > 1).tolist():
        token, column = np.nonzero(expert == one)
        places = slots[one, : copies[one]]
        rows, of = quota[places].copy(), np.full(len(token), -1, np.int32)
        for i, place in enumerate(places.tolist()):
            mine = np.flatnonzero(source[token] == place // slots_per_gpu)[: rows[i]]
            of[mine], rows[i] = place, rows[i] - len(mine)
        turn = np.concatenate([(np.arange(n) + 0.5) / n for n in rows.tolist()])
        of[of < 0] = np.repeat(places, rows)[np.argsort(turn, kind="stable")]
        slot[token, column] = of
    return slot


def _random(expert: I32, slots: I32, copies: I32, n_gpus: int, slots_per_gpu: int) -> I32:
    """Any replica, equally likely."""
    turn = np.random.default_rng(0).random(expert.shape) * copies[expert]
    return np.where(expert < 0, np.int32(-1), slots[expert, turn.astype(np.int32)])


def _local(expert: I32, slots: I32, copies: I32, n_gpus: int, slots_per_gpu: int) -> I32:
    """The replica on the GPU to which the token's own GPU has sent fewest rows in this micro-batch."""
    return _fewest(expert, slots.tolist(), copies.tolist(), [[0] * n_gpus for _ in range(n_gpus)], slots_per_gpu, 0)


def _switch(expert: I32, slots: I32, copies: I32, n_gpus: int, slots_per_gpu: int) -> I32:
    """The replica with the smallest counter in the switch, in the order of arrival: tokens of all GPUs in turn.

    Counters are of GPUs or of slots, and start at 0 in each micro-batch. When one is full, all are halved. An expert has as many replicas as an
    entry of the table has places; others get no row (choices `switch_choice.*`).
    """
    by_gpu = choice_str("switch_choice.counts") == "gpus"
    counters = [0] * (n_gpus if by_gpu else slots_per_gpu * n_gpus)
    most, full = choice_int("switch_choice.replicas"), 1 << choice_int("switch_choice.bits")
    known = np.minimum(copies, most).tolist()
    return _fewest(expert, slots.tolist(), known, [counters] * n_gpus, slots_per_gpu if by_gpu else 1, full)


def _fewest(expert: I32, slots: list[list[int]], copies: list[int], counters: list[list[int]], per_counter: int, full: int) -> I32:
    """Smallest counter first, in turns where equal. `counters`: of each source GPU. `full`: the value that no counter reaches; 0 = they are wide."""
    n_gpus, slot = len(counters), np.full_like(expert, -1)
    tokens, chosen = len(expert) // n_gpus, expert.tolist()
    for token in np.arange(len(expert)).reshape(n_gpus, tokens).T.ravel().tolist():
        count = counters[token // tokens]
        for column, one in enumerate(chosen[token]):
            if one < 0:
                continue
            n = copies[one]
            turns = [slots[one][(token + one + i) % n] for i in range(n)]
            best = min(turns, key=lambda place: count[place // per_counter])
            slot[token, column] = best
            count[best // per_counter] += 1
            if count[best // per_counter] == full:
                count[:] = [value >> 1 for value in count]
    return slot


CHOOSES: dict[str, Chooses] = {"random": _random, "local": _local, "switch": _switch}
"""Who chooses among replicas, beside `turns` by token number."""
