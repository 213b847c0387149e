"""Placements: every expert is somewhere, replicas share evenly, EPLB packs as its reference does."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.specs import Model, load_model
from dysharp.workload import Placement, imbalance, make_routing, rows_per_slot
from dysharp.workload.placement import auto, contiguous, eplb, replica_slots


def _holds_all(placement: Placement, n_experts: int) -> None:
    assert placement.slot_expert.shape == (placement.n_slots,)
    assert placement.slot_expert.dtype == np.int32
    assert set(placement.slot_expert.tolist()) - {-1} == set(range(n_experts))


@given(st.integers(1, 300), st.integers(1, 100))
@settings(deadline=None)
def test_auto_holds_every_expert_and_fills_every_gpu(n_experts: int, n_gpus: int) -> None:
    placement = auto(n_experts, n_gpus)
    _holds_all(placement, n_experts)
    copies = np.bincount(placement.slot_expert)
    assert copies.max() - copies.min() <= 1
    assert bool(placement.note) == bool(n_experts % n_gpus)
    for held in placement.slot_expert.reshape(n_gpus, -1).tolist():
        assert len(set(held)) == len(held)


def test_padded_placement_of_a_rack() -> None:
    routing = make_routing("uniform", load_model("L-8"), 72, 512)
    assert routing.placement.note == "256 experts -> 288 slots on 72 GPUs"
    assert (routing.placement.kind, routing.placement.slots_per_gpu) == ("auto", 4)
    load = rows_per_slot(routing)
    np.testing.assert_allclose(load[:32], load[256:], rtol=0.2)


def test_contiguous() -> None:
    assert contiguous(8, 4).slot_expert.tolist() == list(range(8))
    with pytest.raises(ConfigError, match=r"256 experts do not divide by 72 GPUs; use placement auto"):
        contiguous(256, 72)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_eplb_equals_the_published_greedy(n_experts: int, n_gpus: int, spare: int, seed: int) -> None:
    load = np.random.default_rng(seed).integers(0, 1000, n_experts)
    n_slots = (-(-n_experts // n_gpus) + spare) * n_gpus
    got = eplb(load, n_gpus, n_slots)
    _holds_all(got, n_experts)

    copies = [1] * n_experts
    for _ in range(n_slots - n_experts):
        per_copy = [load[e] / copies[e] for e in range(n_experts)]
        copies[per_copy.index(max(per_copy))] += 1
    replicas = [(load[e] / copies[e], e) for e in range(n_experts) for _ in range(copies[e])]
    held: list[list[int]] = [[] for _ in range(n_gpus)]
    total = [0.0] * n_gpus
    for weight, expert in sorted(replicas, key=lambda pair: -pair[0]):
        free = [g for g in range(n_gpus) if len(held[g]) < n_slots // n_gpus]
        gpu = min(free, key=lambda g: (total[g], g))
        held[gpu].append(expert)
        total[gpu] += weight
    assert got.slot_expert.reshape(n_gpus, -1).tolist() == [sorted(experts) for experts in held]


@pytest.mark.parametrize(
    ("load", "experts"),
    [
        ([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]),
        ([20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]),
    ],
)
def test_eplb_by_node_is_that_of_its_own_example(load: list[int], experts: list[int]) -> None:
    """deepseek-ai/EPLB, README: 12 experts in 4 groups, 16 slots, 2 nodes with 8 GPUs. GPUs hold equal sets of experts."""
    placement = eplb(np.array(load), 8, 16, n_nodes=2, n_groups=4)
    published = sorted(tuple(sorted(pair)) for pair in np.reshape(experts, (8, 2)).tolist())
    assert sorted(map(tuple, placement.slot_expert.reshape(8, 2).tolist())) == published
    for node in (slice(0, 8), slice(8, 16)):
        assert set(placement.slot_expert[node].tolist()) == set(experts[node])


def test_eplb_by_node_keeps_groups_together() -> None:
    model = load_model("deepseek-v3")
    routing = make_routing("lognormal:0.65", model, 32, 64, placement="eplb:slots=288,nodes=4,groups=8")
    groups = [set((node // 32).tolist()) for node in routing.placement.slot_expert.reshape(4, -1)]
    assert sorted(group for held in groups for group in held) == list(range(8))
    with pytest.raises(ConfigError, match="found 8 groups on 3 nodes, expected a multiple"):
        eplb(np.ones(24), 6, n_nodes=3, n_groups=8)


def test_eplb_balances_a_skewed_load() -> None:
    model = load_model("L-8")
    plain = imbalance(make_routing("lognormal:0.65", model, 32, 512))
    routing = make_routing("lognormal:0.65", model, 32, 512, placement="eplb")
    assert routing.placement.note == "256 experts -> 288 slots on 32 GPUs"
    assert plain.copies_max_mean > 1.3
    assert imbalance(routing).copies_max_mean < 1.1


def test_replicas_take_turns() -> None:
    placement = auto(4, 8)
    expert = np.tile(np.arange(4, dtype=np.int32), (100, 1))
    slot = replica_slots(expert, placement, 4)
    np.testing.assert_array_equal(np.bincount(slot.ravel()), [50] * 8)


def test_given_placement(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    listed = [[3, 1], [0, 2, 1]]
    as_json, as_table, as_toml = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.toml"
    as_json.write_text(json.dumps(listed))
    as_table.write_text(json.dumps({"gpus": listed}))
    as_toml.write_text(f"gpus = {listed}")
    for path in (as_json, as_table, as_toml):
        routing = make_routing("uniform", make_model(4, 2), 2, 10, placement=str(path))
        assert routing.placement.slot_expert.tolist() == [3, 1, -1, 0, 2, 1]
        assert routing.placement.kind == "given"
        assert routing.placement.note == "4 experts -> 6 slots on 2 GPUs, 1 empty"
        np.testing.assert_array_equal(routing.placement.slot_expert[routing.slot], routing.expert)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0, 1], [2]]", r"expert 3 is on no GPU \(1 of 4 are missing\)"),
        ("[[0, 1, 2, 3]]", r"found 1 lists of experts, expected one per GPU \(2\)"),
        ("[[0, 1], [2, 4]]", r"GPU 1, entry 1: found expert 4, expected 0 to 3"),
        ("[[0, 1], [2, -1]]", r"GPU 1, entry 1: found expert -1, expected 0 to 3"),
        ("[[0, 1], [2, 3.0]]", r"GPU 1, entry 1: found 3.0, expected an expert id"),
        ("[[0, 1], [2, true]]", r"GPU 1, entry 1: found True, expected an expert id"),
        ("[[0, 1], 3]", r"GPU 1: found int, expected a list of expert ids"),
        ('{"gpu": [[0]]}', r"unknown key 'gpu'; did you mean \"gpus\"\?"),
        ("3", r"expected gpus ="),
        ("[[0, 1], [2", r"malformed JSON"),
        ("[" * 100_000, r"malformed JSON"),
    ],
)
def test_bad_placement_files(
    text: str, message: str, tmp_path: Path, make_model: Callable[..., Model]
) -> None:
    path = tmp_path / "placement.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        make_routing("uniform", make_model(4, 2), 2, 10, placement=str(path))
    assert "placement.json" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("contigous", r"unknown placement 'contigous'; did you mean \"contiguous\"\?"),
        ("eplb:slot=9", r"placement eplb: unknown option 'slot'; did you mean \"slots\"\?"),
        ("eplb:slots=x", r"found slots='x', expected a whole number"),
        ("eplb:slots=7", r"found slots=7, expected a multiple of 2 GPUs from 4 \(experts\)"),
        ("eplb:slots=2", r"found slots=2, expected a multiple of 2 GPUs from 4"),
        ("missing.json", r"missing.json: cannot be read"),
    ],
)
def test_bad_placement_names(name: str, message: str, make_model: Callable[..., Model]) -> None:
    with pytest.raises(ConfigError, match=message):
        make_routing("uniform", make_model(4, 2), 2, 10, placement=name)
