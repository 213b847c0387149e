"""nvls-groups: groups are made for sets that tokens need, tokens take them as the options say, and bytes are those of the closed form."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import pull_train, push_train
from dysharp.oracle import run_oracle
from dysharp.program import Kind, Program
from dysharp.program.verify import verify
from dysharp.systems import get_system
from dysharp.systems.building import MULTIMEM, STORE
from dysharp.systems.building.groups import Wanted, _cover, multicasts, pieces
from dysharp.systems.nvls_groups import Options
from dysharp.workload import Routing, make_routing
from dysharp.workload.routing import needed_gpus
from dysharp.workload.traffic import one_copy_per_gpu

GPUS, TOKENS = 6, 40
MODEL = replace(TINY, n_experts=24, topk=4)
MACHINE = cluster(GPUS)


def routed(kind: str = "uniform", gpus: int = GPUS) -> Routing:
    return make_routing(kind, MODEL, gpus, TOKENS)


def plan(direction: str = "fwd", routing: Routing | None = None, **options: object) -> Program:
    one = get_system("nvls-groups")
    program = one.plan(MODEL, MACHINE, routed() if routing is None else routing, direction, one.options(**options))
    verify(program)
    return program


def by_hand(routing: Routing, wanted: Wanted) -> None:
    """Every needed GPU gets the row by one way; a multicast has two other GPUs or more."""
    piece, need = pieces(routing, wanted), needed_gpus(routing)
    assert not piece[~need].any()
    source = np.arange(routing.n_tokens) // routing.tokens_per_gpu
    for token, own in enumerate(source):
        for i in range(1, piece[token].max() + 1):
            others = np.flatnonzero(piece[token] == i).tolist()
            assert len([g for g in others if g != own]) >= 2 or wanted.capacity or not others


@pytest.mark.parametrize(
    "wanted", [Wanted(9), Wanted(9, sent=False), Wanted(20, exact=True), Wanted(12, tokens=True), Wanted(9, capacity=100)], ids=str
)
def test_rows_take_one_way(wanted: Wanted) -> None:
    by_hand(routed(), wanted)
    by_hand(routed("powerlaw:1.0"), wanted)


def test_no_groups_are_unicasts_and_all_sets_are_dysharps_rows() -> None:
    routing, copies = routed(), one_copy_per_gpu(routed())[0].sum()
    assert not pieces(routing, Wanted(0)).any()
    up = [int(copies - multicasts(pieces(routing, Wanted(most, sent=False)), routing).sum()) for most in (0, 6, 24, 96, 1000)]
    assert up == sorted(up, reverse=True)
    several = needed_gpus(routing)
    several[np.arange(routing.n_tokens), np.arange(routing.n_tokens) // TOKENS] = False
    assert up[-1] == int((several.sum(axis=1) > 0).sum())  # a kept group for every set: each token goes up once


def test_exact_cover_has_the_fewest_rows() -> None:
    """Against all partitions, five GPUs, groups of three and four."""
    groups = tuple((-1, members) for members in ((0, 1, 2, 3), (0, 1, 4), (0, 2, 3), (0, 2, 3, 4)))
    for others in itertools.chain.from_iterable(itertools.combinations(range(1, 5), n) for n in range(1, 5)):
        need = np.zeros((1, 5), bool)
        need[0, list(others)] = True
        _, used = _cover(need, np.zeros(1, np.int64), groups, Wanted(4, exact=True))
        mine = [g for g in used[0, 1:].tolist() if g >= 0]
        best = min(
            len(others) - sum(len(groups[g][1]) - 1 for g in some) + 2 * len(some)
            for n in range(3)
            for some in itertools.combinations(range(4), n)
            if len(flat := [m for g in some for m in groups[g][1][1:]]) == len(set(flat)) and set(flat) <= set(others)
        )
        assert len(others) - sum(len(groups[g][1]) - 1 for g in mine) + 2 * len(mine) == best


def test_own_copies_are_bytes_behind_acknowledgement_and_request() -> None:
    sent, kept = push_train(MULTIMEM, 1024, 1), push_train(STORE, 1024, 1)
    assert (sent.up, sent.down, sent.ack_down - kept.ack_down) == (kept.up, kept.down, kept.down)
    sent, kept = pull_train(MULTIMEM, 1024, 1), pull_train(STORE, 1024, 1)
    assert (sent.down, sent.result, sent.up - kept.up) == (kept.down, kept.result, kept.response)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("reduction", ["pull", "push"])
def test_engine_equals_oracle(direction: str, reduction: str) -> None:
    program = plan(direction, reduction=reduction, groups=12)
    assert run_burst(program)[0].digest() == run_oracle(program).digest()


def test_capacity_keeps_later_tokens_out() -> None:
    few, many = (pieces(routed(), Wanted(9, capacity=capacity)) for capacity in (1, 400))
    assert (few > 0).sum() < (many > 0).sum() == (pieces(routed(), Wanted(9)) > 0).sum()


def test_groups_of_history_know_no_token() -> None:
    """Groups from loads depend on the loads alone."""
    routing = routed()
    turned = np.roll(routing.slot, 7, axis=0)
    assert Options().pieces(replace(routing, slot=turned, expert=np.roll(routing.expert, 7, axis=0))).shape == (GPUS * TOKENS, GPUS)
    kinds = plan(groups=12).kinds()
    assert {Kind.MULTICAST, Kind.PUT, Kind.PULL_REDUCE} <= set(kinds.tolist())
