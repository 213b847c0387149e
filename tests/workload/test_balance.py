"""Exact plans, quotas and the choice among replicas; every rule is noticed when it is changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.specs import Model
from dysharp.specs.choices import choices_overridden
from dysharp.workload import Routing, balance, make_routing, rows_per_slot
from dysharp.workload.placement import exact

MODEL = Model("small", 256, 128, 16, 3, 64, 2, 2, "fp8")
SOURCE = Path(balance.__file__).read_text()


def routed(placement: str, seed: int = 1, gpus: int = 4, routing: str = "lognormal:1") -> Routing:
    return make_routing(routing, MODEL, gpus, 64, seed=seed, placement=placement)


def plan_faults(module: ModuleType, load: np.ndarray, gpus: int) -> list[str]:
    """What is wrong with an exact plan: shares, homes, order, rounds, the order in which takers are served."""
    moves, per = module.exact_moves(load, gpus, len(load) // gpus), len(load) // gpus
    held, left, faults = load.reshape(gpus, per).sum(axis=1), load.copy(), []
    share = [int(held.sum()) // gpus, -(-int(held.sum()) // gpus)]
    room = np.full(gpus, share[0]) - held
    room[np.argsort(room, kind="stable")[: int(held.sum()) % gpus]] += 1
    served = list(dict.fromkeys(taker for _, taker, _ in moves))
    for taker in served:
        mine = [(expert, rows) for expert, to, rows in moves if to == taker]
        home = mine[0][0] // per
        if any(expert // per != home for expert, _ in mine):
            faults.append("two homes")
        if room[taker] != room.max() or room[home] != room.min():
            faults.append("not the fullest to the roomiest")
        for i, (expert, rows) in enumerate(mine):
            if left[expert] != left[home * per : (home + 1) * per].max():
                faults.append("not the hottest first")
            if i + 1 < len(mine) and rows != left[expert]:
                faults.append("a replica more than needed")
            left[expert] -= rows
            room[home], room[taker] = room[home] + rows, room[taker] - rows
            held[home], held[taker] = held[home] - rows, held[taker] + rows
    faults += ["uneven"] * (not set(held.tolist()) <= set(share)) + ["too many rounds"] * (len(served) > gpus)
    return faults + ["rows that are not there"] * bool((left < 0).any()) + ["empty replica"] * any(rows < 1 for *_, rows in moves)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**32), st.floats(0.0, 3.0))
@settings(max_examples=150, deadline=None)
def test_an_exact_plan(gpus: int, per: int, seed: int, spread: float) -> None:
    load = np.random.default_rng(seed).lognormal(2.0, spread, gpus * per).astype(np.int64)
    assert plan_faults(balance, load, gpus) == []
    placement = exact(load, gpus)
    assert placement.quota is not None
    assert placement.moved is not None
    quota = placement.quota.reshape(gpus, -1)
    assert int(np.ptp(quota.sum(axis=1))) <= 1
    np.testing.assert_array_equal(np.bincount(placement.slot_expert + 1, quota.ravel(), load.size + 1)[1:], load)
    assert (quota[:, per:] > 0).sum() == (placement.slot_expert.reshape(gpus, -1)[:, per:] >= 0).sum()


@pytest.mark.parametrize("options", ["", "slots=1", "least=40"])
def test_limits_leave_less_than_a_share(options: str) -> None:
    routing = make_routing("hot-rank:share=0.8", replace(MODEL, n_experts=64), 4, 64, placement=f"exact:{options}" if options else "exact")
    rows, per = rows_per_slot(routing), routing.placement.slots_per_gpu
    p = routing.placement
    assert p.moved is not None
    np.testing.assert_array_equal(rows, p.quota)
    np.testing.assert_array_equal(p.slot_expert[routing.slot], routing.expert)
    moved = rows.reshape(4, -1)[:, per - p.moved.slots :]
    least = 40 if "least" in options else 1
    assert (moved[moved > 0] >= least).all()
    assert p.moved.slots <= 1 or "slots" not in options
    assert (int(np.ptp(rows.reshape(4, -1).sum(axis=1))) == 0) == (options == "")


def quota_faults(module: ModuleType, routing: Routing) -> list[str]:
    """What is wrong with the slots of an exact plan."""
    p, faults = routing.placement, []
    at = [np.flatnonzero(p.slot_expert == e) for e in range(routing.n_experts)]
    copies = np.array([len(one) for one in at], np.int32)
    table = np.array([np.pad(one, (0, copies.max() - len(one)), constant_values=-1) for one in at], np.int32)
    slot = module.by_quota(routing.expert, p.quota, table, copies, p.n_gpus, p.slots_per_gpu)
    if (np.bincount(slot.ravel(), minlength=p.n_slots) != p.quota).any():
        faults.append("other rows than the quota")
    source = np.arange(len(slot)) // routing.tokens_per_gpu
    for expert in np.flatnonzero(copies > 1).tolist():
        token, column = np.nonzero(routing.expert == expert)
        of, places = slot[token, column], at[expert]
        for place in places.tolist():
            own = source[token] == place // p.slots_per_gpu
            if (of[own] != place).any() and (source[token[of == place]] != place // p.slots_per_gpu).any():
                faults.append("a row from elsewhere before an own one")
        rest = of[~np.isin(source[token], places // p.slots_per_gpu)]
        for place in places.tolist():
            ahead = np.cumsum(rest == place) - np.arange(1, len(rest) + 1) * (rest == place).mean() if len(rest) else np.zeros(1)
            if np.abs(ahead).max() > len(places):
                faults.append("bursts")
    return faults


def test_quotas_serve_own_tokens_first_and_the_rest_evenly() -> None:
    for seed in range(12):
        assert quota_faults(balance, routed("exact", seed)) == []


def fewest(expert: np.ndarray, slots: list[list[int]], gpus: int, per: int, by_gpu: bool, shared: bool, full: int) -> np.ndarray:
    """The choice in plain words: (token of each GPU in turn) x column, the smallest counter, ties in turns."""
    counters: dict[tuple[int, int], int] = {}
    out, tokens = np.full_like(expert, -1), len(expert) // gpus
    for turn in range(tokens):
        for gpu in range(gpus):
            token, who = gpu * tokens + turn, 0 if shared else gpu
            for column, one in enumerate(expert[token].tolist()):
                if one < 0:
                    continue
                keys = {s: (who, s // per if by_gpu else s) for s in slots[one]}
                order = [slots[one][(token + one + i) % len(slots[one])] for i in range(len(slots[one]))]
                least = min(counters.get(keys[s], 0) for s in order)
                out[token, column] = next(s for s in order if counters.get(keys[s], 0) == least)
                key = keys[out[token, column]]
                counters[key] = counters.get(key, 0) + 1
                if full and counters[key] == full:
                    counters = {k: v // 2 if k[0] == who else v for k, v in counters.items()}
    return out


def choice_faults(module: ModuleType, routing: Routing) -> list[str]:
    """Rules of choice that differ from plain words."""
    p, faults = routing.placement, []
    slots = [np.flatnonzero(p.slot_expert == e).tolist() for e in range(routing.n_experts)]
    most = max(map(len, slots))
    args = (
        routing.expert, np.array([one + [-1] * (most - len(one)) for one in slots], np.int32), np.array([len(one) for one in slots], np.int32),
        p.n_gpus, p.slots_per_gpu,
    )  # fmt: skip
    wanted = {
        "local": fewest(routing.expert, slots, p.n_gpus, p.slots_per_gpu, True, False, 0),
        "switch": fewest(routing.expert, slots, p.n_gpus, p.slots_per_gpu, True, True, 0),
        "replicas": fewest(routing.expert, slots, p.n_gpus, p.slots_per_gpu, False, True, 0),
        "few": fewest(routing.expert, [one[:4] for one in slots], p.n_gpus, p.slots_per_gpu, True, True, 0),
    }
    for name, slot in wanted.items():
        counts = "replicas" if name == "replicas" else "gpus"
        with choices_overridden({"switch_choice.counts": counts, "switch_choice.replicas": 4 if name == "few" else 16}):
            if (module.CHOOSES[name if name == "local" else "switch"](*args) != slot).any():
                faults.append(name)
    counters = [0] * p.n_gpus
    halved = module._fewest(routing.expert, slots, args[2].tolist(), [counters] * p.n_gpus, p.slots_per_gpu, 8)
    if (halved != fewest(routing.expert, slots, p.n_gpus, p.slots_per_gpu, True, True, 8)).any() or max(counters) >= 8:
        faults.append("halved")
    return faults


def choosers() -> list[Routing]:
    """Replicas on a few GPUs, on all GPUs (more than four of an expert), and tokens without some choices."""
    dropping = routed("eplb:slots=32", 3)
    dropping.expert[::5, 0] = -1
    return [routed("eplb", 1), make_routing("lognormal:1", MODEL, 8, 40, seed=2, placement="eplb:slots=96"), dropping]


def test_choices_are_those_of_plain_words() -> None:
    for routing in choosers():
        assert choice_faults(balance, routing) == []
        for rule in ("random", "local", "switch"):
            placement = f"eplb:slots={routing.placement.n_slots}:choose={rule}"
            chosen = make_routing(routing, MODEL, routing.n_gpus, routing.tokens_per_gpu, placement=placement)
            kept = routing.expert >= 0
            np.testing.assert_array_equal(chosen.placement.slot_expert[chosen.slot][kept], routing.expert[kept])
            assert (chosen.slot[~kept] == -1).all()
            assert chosen.placement.note.endswith(f" GPUs, {rule} chooses")


MUTANTS = {
    "giver is not the fullest": ("int(room.argmin())", "int(np.argsort(room)[min(1, len(room) - 1)])"),
    "taker is not the roomiest": ("int(room.argmax())", "int(np.argsort(-room, kind='stable')[1 if (room > 0).sum() > 1 else 0])"),
    "coldest expert first": ("np.argsort(-own, kind", "np.argsort(own, kind"),
    "more than there is room for": ("int(min(own[local], room[taker]))", "int(own[local])"),
    "no rest": ("[:rest]] += 1", "[:rest]] += 0"),
    "own tokens are not first": ("[: rows[i]]", "[:0]"),
    "bursts": ("(np.arange(n) + 0.5) / n", "np.zeros(n)"),
    "quota of another": ("np.repeat(places, rows)", "np.repeat(places, rows)[::-1]"),
    "no counting": ("count[best // per_counter] += 1", "count[best // per_counter] += 0"),
    "the largest counter": ("best = min(turns", "best = max(turns"),
    "ties to the first": ("(token + one + i) % n", "i % n"),
    "GPU by GPU": (".reshape(n_gpus, tokens).T.ravel()", ""),
    "local counters are shared": ("[[0] * n_gpus for _ in range(n_gpus)]", "[[0] * n_gpus] * n_gpus"),
    "switch counters are local": ("[counters] * n_gpus", "[counters[:] for _ in range(n_gpus)]"),
    "entries without end": ("np.minimum(copies, most)", "copies"),
    "full counters stay": ("value >> 1 for", "value for"),
    "halved late": ("== full:", "== 2 * full:"),
    "counters of GPUs only": ("slots_per_gpu if by_gpu else 1", "slots_per_gpu"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_rule_is_noticed(name: str) -> None:
    old, new = MUTANTS[name]
    assert SOURCE.count(old) == 1, name
    mutant = ModuleType("mutant")
    exec(SOURCE.replace(old, new), vars(mutant))
    faults: list[str] = []
    try:
        for seed in range(20):
            faults += plan_faults(mutant, np.random.default_rng(seed).lognormal(2.0, 1.0, 24).astype(np.int64), 8)
            faults += quota_faults(mutant, routed("exact", seed)) if seed < 6 else []
        for routing in choosers():
            faults += choice_faults(mutant, routing)
    except (IndexError, ValueError):
        faults.append("an error")
    assert faults


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("exact:slot=1", r"placement exact: unknown option 'slot'; did you mean \"slots\"\?"),
        ("exact:plan=-1", r"placement exact: found plan='-1', expected a whole number"),
        ("exact:prefetch=late", r"placement exact: found prefetch='late'.*before"),
        ("exact:choose=switch", r"placement exact: found choose=switch, expected none"),
        ("contiguous:choose=local", r"placement contiguous: found choose=local, expected replicas; here every expert lies once"),
        ("eplb:choose=least", r"placement eplb: found choose='least'.*local"),
    ],
)
def test_wrong_placements_are_refused(placement: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        routed(placement)


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="placement exact: found 16 experts on 5 GPUs, expected a multiple"):
        routed("exact", gpus=5)
