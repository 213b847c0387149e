"""Tiny machines under every order of events: right tensors, no deadlock, nothing left behind."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from dysharp.base.errors import ConfigError
from tests.protocol.checker import CONFIGS, Config, Token, check
from tests.protocol.checker.canon import canonical
from tests.protocol.checker.check import search
from tests.protocol.checker.config import dense_output, with_retries
from tests.protocol.checker.explore import explore
from tests.protocol.checker.machine import CheckedMachine

# Explored without any reduction as well, so small.
PLAIN = {
    "pair": with_retries(CONFIGS["pair-retries"], (0,), (0,)),
    "pair-combine-again": with_retries(CONFIGS["pair-retries"], (0,), (1,)),
    "pair-dispatch-again": with_retries(CONFIGS["pair-retries"], (1,), (0,)),
    "pair-retries": CONFIGS["pair-retries"],
    "shared": CONFIGS["shared"],
    "one-row-tiles": CONFIGS["one-row-tiles"],
    "empty-list": CONFIGS["empty-list"],
    "three-gpus": CONFIGS["three-gpus"],
}


LARGE = {
    "two-gpus": pytest.mark.long,
    "two-local-experts": pytest.mark.long,
    "three-gpus-combines-again": pytest.mark.long,
    "three-gpus-retries": pytest.mark.long,
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=LARGE[n]) if n in LARGE else n for n in CONFIGS])
def test_every_order_ends_right(name):
    begin = time.perf_counter()
    report = check(CONFIGS[name])
    print(f"{name}: {report} in {time.perf_counter() - begin:.1f} s")
    assert report.ok, str(report)


def _ends(machine: CheckedMachine, **how) -> set:
    """What the actors look like at the ends, up to history that nothing reads."""
    found = search(machine, **how)
    assert found.complete
    assert found.reason is None
    return {tuple(canonical(part) for part in machine.parts(state)) for state in found.terminals}


@pytest.mark.parametrize("name", PLAIN)
def test_reduction_reaches_the_same_ends(name):
    machine = CheckedMachine(PLAIN[name])
    assert _ends(machine, reduce=True) == _ends(machine, reduce=False)


@pytest.mark.parametrize("name", ["pair", "pair-retries", "shared", "one-row-tiles"])
def test_merging_states_that_behave_alike_loses_no_end(name):
    plain, merged = CheckedMachine(PLAIN[name], merge=False), CheckedMachine(PLAIN[name])
    assert _ends(plain, reduce=False) == _ends(merged, reduce=False)
    assert _ends(plain, reduce=True) == _ends(merged, reduce=True)


def test_exact_ends_are_the_same_with_and_without_reduction():
    machine = CheckedMachine(PLAIN["shared"], merge=False)
    assert search(machine, reduce=True).terminals == search(machine, reduce=False).terminals


def _random_config(seed: int) -> Config:
    draw = random.Random(seed)
    gpus, per_gpu, n = draw.choice((2, 2, 3)), draw.choice((1, 2)), draw.choice((1, 2, 2, 3))
    again = draw.randrange(n)
    tokens = []
    for t in range(n):
        experts = draw.sample(range(gpus * per_gpu), draw.choice((1, 2)) if n < 3 else 1)
        retries = draw.choice(((0, 0), (1, 0), (0, 1))) if t == again and n < 3 else (0, 0)
        weights = tuple(draw.randint(1, 9) for _ in experts)
        tokens.append(Token(draw.randrange(gpus), draw.randrange(2), tuple(experts), 100 + 37 * t, weights, *retries))
    names = ("tile_rows", "tlb_entries", "mshrs", "reduction_entries", "tracker_entries", "readiness_entries")
    return Config(gpus, 2, per_gpu, tuple(tokens), timeouts=draw.random() < 0.7, **{name: draw.choice((1, 2)) for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_reduction_reaches_the_same_ends_of_random_machines(seed):
    machine = CheckedMachine(_random_config(seed), merge=seed % 2 == 0)
    plain = search(machine, reduce=False, max_states=40_000)
    assert plain.reason is None
    found = search(machine)
    assert found.complete
    assert found.reason is None
    if plain.complete:
        assert found.terminals == plain.terminals
        assert found.states <= plain.states


def test_tables_do_overflow_in_the_required_machines():
    """Otherwise the check would prove little."""
    machine = CheckedMachine(CONFIGS["two-gpus"])
    search(machine, max_states=60_000)
    hubs = [hub for states in machine.states[: machine.port0] for hub in states]
    tables = [table for states in machine.states[machine.or0 : machine.dispatch0] for table in states]
    assert any(len(hub.tiles.memory) for hub in hubs)
    assert any(len(hub.al.pending) == machine.config.mshrs for hub in hubs)
    assert any(any(key not in hub.al.tlb for key in ((e, t) for e, table in enumerate(hub.al.tables) for t in table)) for hub in hubs)
    assert any(len(table.memory) for table in tables)
    names = {machine.events[event][0] for event in range(len(machine.events))}
    assert names == {"data", "ask", "answer", "gemm", "request", "response", "expire", "note", "ack", "piece"}


def test_a_failing_end_is_reported_with_its_path():
    config = CONFIGS["shared"]
    wrong = replace(config, tokens=(replace(config.tokens[0], value=102), config.tokens[1]))
    machine = CheckedMachine(config)
    machine.config = wrong  # judged against another layer
    found = explore(machine.initial(), lambda state: [], machine.verdict, machine.name)
    assert found.reason
    assert found.reason.startswith("deadlock: ")


def test_search_counts_and_stops():
    def successors(state: int) -> list[tuple[str, int]]:
        return [("double", 2 * state), ("one more", 2 * state + 1)] if state < 8 else []

    found = explore(1, successors, lambda state: None)
    assert (found.states, found.transitions, found.terminals, found.complete) == (15, 14, frozenset(range(8, 16)), True)
    assert not explore(1, successors, lambda state: None, max_states=3).complete
    bad = explore(1, successors, lambda state: "eleven" if state == 11 else None)
    assert (bad.reason, bad.path, bad.complete) == ("eleven", ("double", "one more", "one more"), False)


def test_config_says_what_is_wrong():
    token = Token(0, 0, (0, 1), 5, (1, 1))
    for tokens, text in (
        ((replace(token, experts=(0, 0)),), "token 0: found experts (0, 0), expected distinct ones below 2"),
        ((token, replace(token, source=2)), "token 1: found source 2 and plane 0, expected below 2 and 2"),
        ((replace(token, weights=(1,)),), "token 0: found 1 weights for 2 experts"),
    ):
        with pytest.raises(ConfigError) as error:
            Config(2, 2, 1, tokens)
        assert str(error.value) == text


def test_values_tell_rows_apart():
    for config in CONFIGS.values():
        assert len(set(dense_output(config))) == len(config.tokens)
