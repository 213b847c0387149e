"""Costs of plans: hot ranks, EP systems, slots, sensitivity, the replay of a schedule."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dysharp.api import plan_confirm
from dysharp.api.plan_confirm import confirm, ranked_by_rows, replayed
from dysharp.base.units import PS_PER_US
from dysharp.costs.collectives import link_us
from dysharp.costs.exchange import Peers, Rows, exchange, least_us
from dysharp.model import Layout
from dysharp.model.state import PLAIN
from dysharp.planning.cost import Coster, machine_of
from dysharp.planning.experts import hottest
from dysharp.planning.names import schedule_of
from dysharp.planning.offload import OFFLOADED, offloaded_bytes
from dysharp.planning.offload import SETS as OFFLOADS
from dysharp.planning.plan import front, training_recipe_for
from dysharp.planning.schedules import V_SHAPED
from dysharp.planning.search import _constants_of, _variations, search, sensitivity
from dysharp.planning.space import SETS, WEIGHTS, Space, Task, broken_by, default_space
from dysharp.planning.split import slots
from dysharp.specs import load_cluster, load_whole
from dysharp.training.cost import PassCost
from dysharp.training.costs import beside, layer_shards, with_rows
from dysharp.training.memory import Saving, memory_of
from dysharp.training.schedules import make_schedule
from dysharp.training.wires import host_rate
from dysharp.workload import expected_copies

H100 = load_cluster("hw-dgx-h100-x2")


def coster(gpus: int = 16, **lists: tuple[object, ...]) -> Coster:
    model, machine = load_whole("qwen3-30b"), machine_of(H100)
    task = Task(model, gpus, 64, 1024, training_recipe=training_recipe_for(model, machine))
    small = {"tp": (1,), "pp": (1, 2), "vpp": (1, 2), "ep": (4, 8), "micro_batch": (1,), "recompute": ((),)}
    return Coster(task, machine, default_space(task, machine, small | lists))


def test_more_ranks_of_fewer_experts_are_hotter() -> None:
    loads = [hottest(256, ranks, 0.256) for ranks in (1, 8, 32, 128, 256)]
    assert loads == sorted(loads)
    assert loads[0] == 1
    assert loads[2] == pytest.approx(1.19, abs=0.02)  # 1 + 0.256 / sqrt(8) x the mean largest of 32 normal draws, 2.07
    assert hottest(256, 32, 0.0) == 1


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_a_hotter_rank_takes_longer_and_holds_more(micro_batch: int) -> None:
    """Where launches of the host set the time of every pass, the hotter rank holds more and takes as long."""
    values = coster().space.candidate(0) | {"ep": 8, "system": "deepep", "micro_batch": micro_batch}
    even, hot = (Coster(replace(coster().task, imbalance=factor), coster().machine, Space()).cost_of(values) for factor in (1.0, 1.5))
    assert hot.step_us > even.step_us if micro_batch > 1 else hot.step_us == pytest.approx(even.step_us, rel=1e-12)
    assert hot.peak_bytes > even.peak_bytes


def test_a_hotter_rank_gives_gradients_no_more_time_to_hide() -> None:
    """With overlap, launches set the time of both passes of a micro-batch: gradients hide beside the backward pass that this time has."""
    model, machine = load_whole("moonlight-16b"), machine_of(load_cluster("hw-dgx-b200-x8"))
    space = Space(ep=(16,), recompute=((),), overlap=("pair",), system=("deepep",))
    tasks = (Task(model, 128, 512, 2048, training_recipe=training_recipe_for(model, machine), imbalance=factor) for factor in (1.1, 1.5, 2.0))
    done = [Coster(task, machine, space).cost(0) for task in tasks]
    assert all(one.parts["gradients and parameters"] > 0 for one in done)
    assert done[0].step_us < done[1].step_us < done[2].step_us


def test_switches_that_copy_and_sum_are_never_slower_than_a_row_per_expert() -> None:
    values = coster().space.candidate(0) | {"ep": 8}
    steps = {name: coster().cost_of(values | {"system": name}).step_us for name in ("flat", "dedup", "in-switch", "moe-hub")}
    assert steps["in-switch"] <= steps["dedup"] <= steps["flat"]


def test_switches_gather_and_scatter_at_once_inside_a_domain() -> None:
    """Weights fill links down, gradients links up; over NICs a switch spares nothing, and where rows of experts pass, both leave less time."""
    one = coster()
    model, nothing = one.task.model, PassCost()
    for layout, gains in ((Layout(ep=8, dp=8, fsdp=8), True), (Layout(ep=8, dp=16, fsdp=16), False)):
        flat, switched = (beside(model, one.machine, layout, 0, nothing, switch) for switch in (False, True))
        assert switched.forward == flat.forward > 0
        assert (switched.backward < flat.backward) == gains
    near = beside(model, one.machine, Layout(ep=8, dp=8, fsdp=8), 0, nothing, True)
    dense = layer_shards(model, Layout(ep=8, dp=8), 0).dense
    gathered, scattered = (one.machine.group(dense * element, 8, 1) for element in (2, 4))
    assert near.backward == pytest.approx(max(gathered + scattered / 7, scattered + gathered / 7))
    busy = with_rows(one.machine, Layout(ep=8, dp=8), PassCost(1e6, 1e6, forward_wire=1e6, backward_wire=1e6))
    assert beside(model, one.machine, Layout(ep=8, dp=8, fsdp=8), 0, busy).forward == pytest.approx(near.forward)
    wide = Layout(ep=8, dp=16, fsdp=16)
    sent = 2 * layer_shards(model, wide, 0).dense * 15 / 16  # a ring over two domains passes links and NICs
    assert beside(model, one.machine, wide, 0, busy).forward == pytest.approx(sent / one.machine.link)  # rows pass links alone


def test_ranks_that_share_an_expert_are_reached_together() -> None:
    one = coster()
    layer, row = one.task.model.layer, 2.0 * one.task.model.hidden
    assert layer is not None
    for ep, etp in ((8, 1), (4, 2), (2, 4)):
        times = {
            system: least_us(one.machine, layer, Peers(ep, etp), Rows(512e6, row, row), system, 0.0) / 512e6 / row
            for system in ("in-switch", "moe-hub")
        }
        copies = 7 * etp * expected_copies(ep, layer.n_experts, layer.topk) / 8
        rate = float(link_us(one.machine.gpu, one.machine.constants, 1.0))
        assert times == pytest.approx({"in-switch": (1 + copies) * rate, "moe-hub": 2 * copies * rate})
    refused = confirm(one, one.cost_of(one.space.candidate(0) | {"ep": 4, "etp": 2, "system": "in-switch"}))
    assert "ranks of a simulated system have whole experts" in refused.left_out


def test_a_gather_over_ranks_of_one_tensor_index_takes_more_with_fewer_tensor_ranks() -> None:
    """MindSpeed's hierarchical exchange: with 8 tensor ranks a token leaves for 3 other nodes, with 2 for 12 ranks of them."""
    machine, model = machine_of(load_cluster("paper-ascend-910b")), load_whole("pangu-ultra-moe")
    assert model.layer is not None
    row, k = 2 * 7680 * 1024.0, 8
    start = 2e-6 * machine.cluster.link_latency_ps + machine.hop
    for tp, far, near in ((8, 3, k * 7 / 8), (2, 12, 3 + k / 2)):
        wire = exchange(machine, model.layer, Peers(32, tp=tp), Rows(1024, 2.0 * 7680, 2.0 * 7680), "hierarchical").dispatch
        assert wire == pytest.approx(start + row * (far / machine.nic + near / machine.link))


@pytest.mark.parametrize(
    ("framework", "weights", "schedules", "refused"),
    [
        ("megatron", WEIGHTS, {"1f1b"}, set()),
        ("primus", WEIGHTS, {"1f1b", "zb-h1", "zbv", "v-half", "v-min"}, set()),
        ("nemo-24.07", ("whole",), {"1f1b"}, {"equal chunks"}),
        ("mindspeed", WEIGHTS, {"1f1b", "dualpipev"}, {"ep a multiple of tp, or etp = tp", "overlap needs whole experts"}),
    ],
)
def test_a_default_space_has_what_the_framework_offers(framework: str, weights: tuple[str, ...], schedules: set[str], refused: set[str]) -> None:
    task = Task(load_whole("qwen3-30b"), 16, 64, framework=framework)
    space = default_space(task, machine_of(load_cluster("paper-ascend-910b")))
    assert space.weights == weights
    assert set(space.schedule) == schedules
    values = {"tp": 2, "pp": 5, "vpp": 1, "ep": 1, "etp": 1, "cp": 1, "micro_batch": 1, "recompute": (), "offload": (), "weights": "whole"}
    values |= {"schedule": "1f1b", "overlap": "none", "system": "flat"}
    broken = set()
    for own in (values, values | {"ep": 8, "etp": 2, "overlap": "pair"}):
        broken |= set(broken_by(task, Space(**{name: (value,) for name, value in own.items()}), machine_of(load_cluster("paper-ascend-910b"))))  # type: ignore[arg-type]
    assert refused <= broken
    named = {"equal chunks", "ep a multiple of tp, or etp = tp", "overlap needs whole experts"}
    assert broken & named == refused


@pytest.mark.parametrize(
    ("name", "absent"), [("qwen3-30b", {"mla_up_proj"}), ("deepseek-v2-lite", set()), ("llama3-8b", {"mla_up_proj", "moe_act", "expert_fc1"})]
)
def test_a_default_space_names_modules_that_the_model_has(name: str, absent: set[str]) -> None:
    """A module that the model has not changes neither time nor memory, so no set of modules is lost."""
    model, machine = load_whole(name), machine_of(H100)
    task = Task(model, 16, 64, training_recipe=training_recipe_for(model, machine))
    space = default_space(task, machine)
    named = {module for sets in (space.recompute, space.offload) for modules in sets for module in modules}
    assert named & {"mla_up_proj", "moe_act", "expert_fc1"} == {"mla_up_proj", "moe_act", "expert_fc1"} - absent
    one = Coster(task, machine, space)
    values = space.candidate(0)
    for key, sets in (("recompute", SETS), ("offload", OFFLOADS)):
        costs = [{(done.step_us, done.memory) for done in (one.cost_of(values | {key: own}) for own in some)} for some in (getattr(space, key), sets)]
        assert costs[0] == costs[1]


@pytest.mark.parametrize(
    "values",
    [
        {"pp": 1, "vpp": 1}, {"pp": 2, "vpp": 1}, {"pp": 2, "vpp": 2}, {"pp": 4, "vpp": 1, "schedule": "zb-h1"},
        {"pp": 4, "vpp": 1, "schedule": "dualpipe"}, *({"pp": 4, "vpp": 2, "schedule": name} for name in V_SHAPED),
        {"pp": 4, "vpp": 2, "schedule": "dualpipev", "overlap": "pair"},
    ],
)  # fmt: skip
def test_the_replay_of_a_schedule_confirms_the_formula(values: dict[str, Any]) -> None:
    one = coster()
    cost = one.cost_of(one.space.candidate(0) | {"ep": 4, "system": "deepep"} | values)
    assert replayed(one, cost).makespan / PS_PER_US == pytest.approx(cost.step_us, rel=0.06)


@pytest.mark.parametrize("pp", [1, 2])
def test_sharded_weights_are_those_of_steps(pp: int) -> None:
    one = coster()
    values = one.space.candidate(0) | {"pp": pp, "ep": 8, "system": "deepep"}
    whole, shared = (one.cost_of(values | {"weights": how}) for how in WEIGHTS)
    assert shared.layout.fsdp == 16 // pp
    assert shared.peak_bytes < whole.peak_bytes
    assert shared.step_us >= whole.step_us - whole.parts["gradients and parameters"] - whole.parts["optimizer"]
    order = make_schedule("1f1b", pp, shared.layout.micro_batches)
    counted = memory_of(one.task.model, shared.layout, one.task.sequence, one.recipe, Saving(imbalance=one.task.hottest(8)), order)
    assert shared.memory == pytest.approx([counted.reserved(rank) for rank in counted.ranks], rel=0.01)
    assert replayed(one, shared).makespan / PS_PER_US == pytest.approx(shared.step_us, rel=0.06)


@pytest.mark.parametrize("recompute", [(), ("full",), ("moe_act",)])
@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("1f1b", 2), ("zbv", 2), ("v-half", 2), ("v-min", 2), ("dualpipe", 1), ("dualpipev", 2)])
def test_memory_of_a_schedule_is_that_of_its_order(name: str, vpp: int, recompute: tuple[str, ...]) -> None:
    """`training` counts the memory of every rank from the order of the whole schedule: `step` takes what fits by `plan`."""
    one = coster()
    cost = one.cost_of(one.space.candidate(0) | {"pp": 4, "vpp": vpp, "ep": 4, "system": "deepep", "schedule": name, "recompute": recompute})
    order = make_schedule(schedule_of(cost), 4, cost.layout.micro_batches, vpp)
    saving = Saving(recompute, imbalance=one.task.hottest(4))
    counted = memory_of(one.task.model, cost.layout, one.task.sequence, one.recipe, saving, order)
    assert cost.memory == pytest.approx([counted.reserved(rank) for rank in counted.ranks], rel=1e-6)


def test_offloaded_inputs_leave_memory_and_cost_time_only_beyond_a_pass() -> None:
    one = coster()
    values = one.space.candidate(0) | {"pp": 2, "ep": 8, "system": "deepep", "micro_batch": 4}
    kept, little, much = (one.cost_of(values | {"offload": offload}) for offload in ((), ("core_attn",), tuple(OFFLOADED)))
    assert kept.peak_bytes > little.peak_bytes > much.peak_bytes
    assert kept.step_us == little.step_us < much.step_us
    pieces = one.pieces(values | {"offload": tuple(OFFLOADED)})
    tokens, rate = 4 * one.task.sequence, host_rate(one.machine)
    moe, saving = Layout(ep=8, dp=8, micro_batch=4), Saving(imbalance=one.task.hottest(8))
    gone = tokens * offloaded_bytes(one.task.model, moe, True, saving, PLAIN, tuple(OFFLOADED))
    plain = one.pieces(values).costs["t"]
    late = max(0, gone / rate - plain.forward) + max(0, gone / rate - plain.backward - plain.weights)
    assert pieces.costs["t"].parts["host copies"] == pytest.approx(late)


def test_slots_are_equal_and_no_ops_even_the_last_round() -> None:
    weights = (0.25, *[1.0] * 61, 2.25, 1.0)
    ends = slots(weights, 16, 2)
    runs = [weights[a:b] for a, b in zip((0, *ends[:-1]), ends, strict=True)]
    assert [len(run) for run in runs[:16]] == [3, *[2] * 15]
    assert max(map(sum, runs)) == 3.25  # MTP beside a layer or the head: two slots for 61 + 1 layers leave no better place
    assert max(map(len, runs[16:])) == 2
    ends = slots((0.0, *[1.0] * 67, 0.5), 16, 2)
    sizes = [b - a for a, b in zip((0, *ends[:-1]), ends, strict=True)]
    assert sizes[:16] == [4, *[3] * 15]
    assert max(sizes[16:]) == 2  # 19 layers and the head over 16 chunks of three slots
    assert sum(sizes) == 69


def test_every_change_of_a_constant_is_a_search() -> None:
    one = coster(pp=(1,), vpp=(1,), micro_batch=(4,), overlap=("none",), weights=("whole",))
    best = search(one, 1).best[0]
    ticks: list[tuple[int, int, str]] = []
    moved = sensitivity(one, H100, best, lambda *tick: ticks.append(tick))
    n = len([*_variations(one, H100)])
    assert [tick[:2] for tick in ticks] == [(done, n) for done in range(n)]
    assert "with training.forward_us x 0.8" in {tick[2] for tick in ticks}
    names = {m.constant for m in moved}
    assert {"size of memory", "training.forward_us", "spread of expert loads"} <= names
    assert names <= {*_constants_of(H100), "spread of expert loads"}
    for m in moved:
        assert 0 <= m.behind < 1 or m.behind == float("inf")
        assert m.winner.values == best.values or m.behind > 0


def test_the_front_holds_points_that_no_other_beats() -> None:
    assert front([(3, 1), (2, 2), (1, 1), (2, 2)]) == [True, True, False, True]


@pytest.mark.slow
def test_rows_rank_and_a_merged_program_confirms() -> None:
    one = coster(system=("deepep",), overlap=("none", "pair"))
    best = search(one, 3).best
    ranked = ranked_by_rows(one, best)
    assert not ranked.left_out
    assert sorted(steps[1] or 0 for steps in ranked.steps) == [steps[1] for steps in ranked.steps]
    pair = one.cost_of(best[0].values | {"overlap": "pair", "pp": 1, "vpp": 1, "ep": 8})
    done = confirm(one, pair)
    assert done.rows is not None
    assert done.merged is not None
    assert 0.8 * done.rows < done.merged < 1.2 * done.rows
    assert "merged in one Program" in done.sentence()
    alone = confirm(one, one.cost_of(pair.values | {"overlap": "none"}))
    assert alone.merged is not None
    assert done.merged <= alone.merged  # both wait for the launches of their kernels here


def test_rows_of_both_passes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_confirm, "compare", lambda systems, direction, **_: SimpleNamespace(rows=[direction]))
    monkeypatch.setattr(plan_confirm, "_ep_times", lambda forward, backward: f"{forward} before {backward}")
    one = coster(system=("deepep",), overlap=("none",))
    assert plan_confirm._rows(one, one.cost_of(one.space.candidate(0) | {"ep": 8})) == ("fwd", "fwd before bwd")


def test_a_system_without_simulation_says_so() -> None:
    one = coster(system=("hierarchical",), overlap=("none",))
    done = confirm(one, one.cost_of(one.space.candidate(0) | {"ep": 8}))
    assert done.rows is None
    assert "no simulated system is hierarchical" in done.sentence()
