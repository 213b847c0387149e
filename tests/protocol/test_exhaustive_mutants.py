"""The exhaustive check notices every fault of a block, and says how."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutant import Mutant, plant

from dysharp.protocol import al_table, collect, lsu, readiness, reduction, tracker
from tests.protocol.checker import CONFIGS, actors, check
from tests.protocol.checker.config import with_retries

MACHINES = {
    "pair": with_retries(CONFIGS["pair-retries"], (0,), (0,)),
    "dispatch again": with_retries(CONFIGS["pair-retries"], (1,), (0,)),
    "combine again": with_retries(CONFIGS["pair-retries"], (0,), (1,)),
    "shared": CONFIGS["shared"],
    "shared, dispatch again": with_retries(CONFIGS["shared"], (1, 0), (0, 0)),
    "three GPUs": CONFIGS["three-gpus"],
    "three GPUs, no timeouts": replace(CONFIGS["three-gpus"], timeouts=False),
    "two local": CONFIGS["no-timeouts"],
}


MUTANTS = [
    # reduction
    Mutant("count dropped on eviction", reduction, "_leave", "session, entry.count, entry", "session, 0, entry", "three GPUs", "deadlock"),
    Mutant("eviction without its data", reduction, "_leave", "() if entry.value is None else (", "() if True else (", "three GPUs", "deadlock"),
    Mutant("bypass lost", reduction, "_respond", "(Bypass(event.session, event.count, event.value),)", "()", "three GPUs", "deadlock"),
    Mutant("bypass counts packets", reduction, "_respond", "Bypass(event.session, event.count,", "Bypass(event.session, 1,", "two local", "deadlock"),
    Mutant("packets instead of targets", reduction, "_respond", "entry.remaining - event.count", "entry.remaining - 1", "two local", "deadlock"),
    Mutant("eviction keeps the entry", reduction, "_leave", "state.table.without(session)", "state.table", "three GPUs", "Assertion"),
    Mutant("last value replaces the sum", reduction, "_respond", "entry.value + event.value", "event.value", "three GPUs", "wrong tensor"),
    # source
    Mutant("complete one too early", collect, "step", "total.count == targets", "total.count >= targets - 1", "three GPUs", "wrong tensor"),
    Mutant("pieces of attempts mixed", collect, "step", "totals.get(event.attempt)", "totals.get(0)", "combine again", "wrong tensor"),
    Mutant(
        "pieces of an old attempt accepted",
        collect,
        "step",
        "total = _add(",
        "totals = Table((0, t) for t in [v for _, v in totals.items()]); event = replace(event, attempt=0); total = _add(",
        "combine again",
        "wrong tensor",
    ),
    Mutant("retry reuses its attempt", lsu, "step", "outstanding[event.tag] + 1", "outstanding[event.tag]", "combine again", "wrong tensor"),
    # AL table
    Mutant("forgotten waiter of a miss", al_table, "_look_up", "*(waiting or ())", "*()", "dispatch again", "leak"),
    Mutant(
        "two first touches allocate twice",
        al_table,
        "_answer",
        "state, layout = _allocate(state, key)",
        "state, layout = [_allocate(state, key), _allocate(_allocate(state, key)[0], key)][len(waiting) > 1]",
        "dispatch again",
        "Assertion",
    ),
    Mutant("known block allocated again", al_table, "_answer", "layout_of(state, key), []", "-1, []", "shared", "Assertion"),
    Mutant("block given out twice", al_table, "_allocate", "=tables), len(table)", "=tables), 0", "shared", "Assertion"),
    Mutant(
        "tag of the victim with old data",
        al_table,
        "_cache",
        "state.tlb.last(key, layout)",
        "state.tlb.last(key, state.tlb[state.tlb.first()] if len(state.tlb) else layout)",
        "shared, dispatch again",
        "wrong tensor",
    ),
    # tracker
    Mutant("repeated store counts twice", tracker, "_store", "seen >> event.chunk & 1", "False", "shared, dispatch again", "Assertion"),
    Mutant(
        "threshold one row short",
        tracker,
        "_store",
        "entry.bytes == state.shape.threshold_bytes(tile)",
        "entry.bytes == max(1, state.shape.threshold_bytes(tile) - 1)",
        "shared",
        "wrong tensor",
    ),
    Mutant("last tile waits for a full one", tracker, "_store", "state.shape.threshold_bytes(tile)", "state.shape.tile_rows", "pair", "deadlock"),
    Mutant("TS entry lost on overflow", tracker, "_put", "memory.put(victim, on_chip[victim])", "memory", "two local", "deadlock"),
    Mutant("one notice per tile", tracker, "step", "state.tokens[event.tile])", "state.tokens[event.tile][:1])", "shared", "deadlock"),
    # OR table
    Mutant("OR entry lost on overflow", readiness, "step", "memory.put(victim, on_chip[victim])", "memory", "three GPUs", "deadlock"),
    Mutant("OR entry not read back", readiness, "_announced", "state.memory.get(token)", "()", "three GPUs", "deadlock"),
    Mutant("ready one notice early", readiness, "step", "len(announced) == state", "len(announced) + 1 >= state", "three GPUs", "Assertion"),
    # hub
    Mutant(
        "sources told at GEMM-1",
        actors,
        "_compute",
        "work=hub.work.put(tile, rows)), []",
        "work=hub.work.put(tile, rows)), [message('note', t, 0, tile[0] + gpu * config.experts_per_gpu) for t, _ in state.tokens[tile]]",
        "pair",
        "wrong tensor",
    ),
    Mutant("answer before all local experts", actors, "_read", "if left:", "if left > 1:", "two local", "Assertion"),
    Mutant("acknowledged before all copies", actors, "_write", "if left:", "if left > 1:", "two local", "Assertion"),
    Mutant("duplicates not acknowledged", actors, "_write", "sent.append(", "outputs and sent.append(", "dispatch again", "deadlock"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_is_killed(mutant, monkeypatch):
    plant(mutant, monkeypatch)
    # A mutant may break what the reduction rests on, so the search is the plain one.
    report = check(MACHINES[mutant.machine], reduce=False, merge=False)
    print(f"{mutant.name}: {report}")
    assert report.reason, f"{mutant.name} survives {report}"
    assert report.reason.startswith(mutant.reason)


@pytest.mark.parametrize("name", MACHINES)
def test_unchanged_blocks_pass(name):
    report = check(MACHINES[name])
    assert report.ok, str(report)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_is_killed_in_the_reduced_search_too(mutant, monkeypatch):
    plant(mutant, monkeypatch)
    assert check(MACHINES[mutant.machine], max_states=200_000).reason


def test_mutants_are_many_and_distinct():
    assert len(MUTANTS) >= 25
    assert len({m.name for m in MUTANTS}) == len({(m.function, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)
