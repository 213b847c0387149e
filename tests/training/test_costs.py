"""Costs of a step: every FLOP of the model once, bytes of groups in closed form, what limits merged pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from dysharp.base.errors import ConfigError
from dysharp.costs.attention import AttentionCall, attention_flops
from dysharp.costs.layer import gradients, kernels
from dysharp.costs.linear_attention import DeltaNet
from dysharp.costs.machine import Machine
from dysharp.measured.training.step_time import estimate
from dysharp.model import RECIPES, Formats, chunks_of, formats_of, layout_of
from dysharp.model.batch import prompt_batch
from dysharp.model.flops import flops_of
from dysharp.model.operators import LINEAR_FORMS, Core, MemoryOp, Weight, operators
from dysharp.model.state import rank_parameters
from dysharp.specs import load_cluster, load_whole
from dysharp.training.block import Block
from dysharp.training.cost import BlockTimes, EpTimes, PassCost
from dysharp.training.costs import beside, layer_shards, step_costs
from dysharp.training.graph import replay, step_graph
from dysharp.training.moe_block import exchange
from dysharp.training.recipe import WHOLE, TrainingRecipe
from dysharp.training.schedules import make_schedule

PAPER = "paper-gh200-nvl32"
MEMORY_START = Machine(load_cluster("hw-dgx-b200")).memory(0)


@dataclass(frozen=True)
class Counting(Machine):
    """A machine of one FLOP per microsecond, with free memory and links: times are FLOPs."""

    def gemm(self, m: float, n: float, k: float, dtype: str, groups: float | None = None, **_: object) -> float:
        return 2 * m * n * k * (groups or 1)

    def flops(self, count: float, dtype: str) -> float:
        return count

    def delta_net(self, call: DeltaNet, direction: Literal["forward", "backward"] = "forward") -> float:
        per_token = 2.0 * LINEAR_FORMS["gdn"].products * call.value_heads * call.key_dim * call.value_dim
        return per_token * call.sequences * call.tokens * (2 if direction == "backward" else 1)

    def memory(self, n_bytes: float, kernels: int = 1) -> float:
        return 0.0

    def attention(self, call: AttentionCall, direction: Literal["forward", "backward"] = "forward") -> float:
        return float(attention_flops(call)) * (2 if direction == "backward" else 1)

    def group(self, n_bytes: float, size: int, stride: int) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("deepseek-v3", "pp=4,ep=64,stages=Et*15|(t*15|)*2t*16mL"), ("qwen3-235b", "ep=8,tp=4,dp=2"), ("gpt-oss-120b", "pp=2,ep=8"),
        ("llama3-70b", "tp=8,pp=2,vpp=2"), ("qwen3-next-80b", "pp=2,ep=8,stages=Et*24|t*24mL"),
    ],
)  # fmt: skip
def test_stages_compute_every_flop_of_the_model(name: str, layout: str) -> None:
    """Routed experts are Rows, here of no time: their FLOPs are left out."""
    model, plan = load_whole(name), layout_of(layout)
    sequence = 4096
    costs = step_costs(model, Counting(load_cluster(PAPER)), plan, sequence, EpTimes(0, 0) if model.layer else None)
    flops = flops_of(model, sequence)
    experts = flops.forward.get("routed experts", 0.0)
    if model.mtp and model.layer:
        layer = model.layer
        experts += model.mtp * 2 * layer.topk * layer.hidden * layer.expert_hidden * layer.n_matrices
    per_token = plan.tp / sequence
    assert sum(one.forward for one in costs.stages) * per_token == pytest.approx(flops.forward_total - experts, rel=1e-3)  # a query sees itself
    assert sum(one.backward for one in costs.stages) * per_token == pytest.approx(flops.data_gradients - experts, rel=1e-3)
    assert sum(one.weights for one in costs.stages) * per_token == pytest.approx(flops.weight_gradients - experts, rel=1e-3)


def test_groups_take_the_bytes_of_a_ring() -> None:
    machine = Machine(load_cluster(PAPER))  # 450 GB/s of links, an assumed 50 GB/s between domains of 32
    assert machine.group(450e6, 32, 1) == pytest.approx(1000 * 31 / 32)
    assert machine.group(450e6, 64, 1) == pytest.approx(1000 * 63 / 64)  # 32 members bring 32 cards: links are slower
    assert machine.group(50e6, 16, 32) == pytest.approx(1000 * 15 / 16)
    assert machine.group(50e6, 16, 16) == pytest.approx(500 * 15 / 16)
    assert machine.group(1e6, 1, 1) == 0


def test_a_pair_is_bound_by_computing_or_by_communication() -> None:
    ahead = PassCost(forward=10, forward_exposed=6, forward_wire=8)
    assert ahead.pair_with(PassCost(backward=12, weights=5, backward_exposed=4, backward_wire=9)) == 4 + 8 + 5
    assert ahead.pair_with(PassCost(backward=12, weights=1, backward_exposed=4, backward_wire=12)) == 8 + 12
    assert ahead.pair_with(PassCost(backward=2, weights=1, backward_exposed=2, backward_wire=30)) == 13  # never longer than one after the other


def test_gradients_of_experts_go_over_their_own_replicas() -> None:
    model, machine = load_whole("deepseek-v2-lite"), Machine(load_cluster(PAPER))
    one = step_costs(model, machine, layout_of("ep=32,dp=32"), 64, EpTimes(1, 1))
    two = step_costs(model, machine, layout_of("ep=32,dp=64"), 64, EpTimes(1, 1))
    assert sum(map(sum, one.times.reduce)) < sum(map(sum, two.times.reduce))
    assert len(one.times.reduce[0]) == len(one.times.gather[0]) > 1
    assert sum(map(sum, one.times.gather)) == pytest.approx(sum(map(sum, one.times.reduce)) / 2, rel=1e-3)


def test_recomputation_adds_forward_passes() -> None:
    model, machine, layout = load_whole("llama3-8b"), Machine(load_cluster("hw-dgx-h100")), layout_of("tp=8")
    sets = ((), ("core_attn",), ("core_attn", "mlp"), ("full",))
    back = [step_costs(model, machine, layout, 4096, None, training_recipe=TrainingRecipe(recompute=one)).stages[0] for one in sets]
    assert [one.forward for one in back] == pytest.approx([back[0].forward] * 4)
    assert back[0].backward < back[1].backward < back[2].backward < back[3].backward
    assert back[3].backward < back[0].backward + back[0].forward  # the head is not computed again
    assert 0 < back[0].forward < back[0].backward + back[0].weights


def test_experts_in_closed_form_compute_every_flop() -> None:
    model, layout = load_whole("qwen3-30b"), layout_of("ep=8,dp=8")
    machine = Counting(load_cluster(PAPER))
    rows, closed = (
        step_costs(model, machine, layout, 4096, EpTimes(0, 0), training_recipe=TrainingRecipe(dispatcher=name)) for name in ("", "alltoall")
    )
    added = sum(one.weights for one in closed.stages) - sum(one.weights for one in rows.stages)
    assert added == pytest.approx(4096 * flops_of(model, 4096).forward["routed experts"])


def test_a_host_that_launches_slowly_bounds_a_pass() -> None:
    model, layout = load_whole("qwen3-30b"), layout_of("ep=8,dp=8,mbs=1")
    machine = Machine(load_cluster("hw-dgx-b200"))

    def slope(**said: object) -> float:
        training_recipe = TrainingRecipe(dtype="bf16", dispatcher="hybrid-ep", host=True, **said)  # type: ignore[arg-type]
        return estimate(model, machine, layout, 64, training_recipe).slope_us

    eager, partly, whole = slope(), slope(graphs=("attn", "moe_router")), slope(graphs=(WHOLE,))
    assert eager > partly > whole
    calls, looped = TrainingRecipe(dtype="bf16").launches(operators(model, 0), 16)[0]
    assert eager >= 48 * machine.launch(calls, looped, "forward")


def test_a_pass_that_is_computed_again_is_launched_again() -> None:
    model, machine = load_whole("qwen3-30b"), Machine(load_cluster("hw-dgx-b200"))

    def layer(*modules: str) -> PassCost:
        training_recipe = TrainingRecipe(dtype="bf16", dispatcher="hybrid-ep", host=True, recompute=modules)
        return Block(model, machine, layout_of("ep=8,dp=8,mbs=1"), 64, training_recipe).layer(0, None)

    kept, some, whole = layer(), layer("layernorm", "moe_act"), layer("full")
    # 64 tokens: launches bind. Two norms and an activation, each with one operation before its pass and three around its replay.
    assert some.forward - kept.forward == pytest.approx(machine.launch(3, 0, "forward"))
    assert some.backward - kept.backward == pytest.approx(machine.launch(3 + 9, 0, "forward"))
    assert whole.backward - kept.backward == pytest.approx(kept.forward + machine.launch(3, 0, "forward"))


def test_an_estimate_of_few_micro_batches_equals_the_replay_of_all() -> None:
    model, machine = load_whole("qwen3-30b"), Machine(load_cluster("hw-dgx-h100-x8"))
    for text in ("pp=4,ep=8,dp=8,m=40", "pp=4,vpp=3,ep=8,dp=8,m=40"):
        layout, training_recipe = layout_of(text), TrainingRecipe(dispatcher="deepep", host=True)
        costs = step_costs(model, machine, layout, 4096, None, training_recipe=training_recipe)
        order = make_schedule("interleaved" if layout.vpp > 1 else "1f1b", 4, 40, layout.vpp)
        whole = replay(step_graph(order, costs.times)).makespan / 1e6
        assert estimate(model, machine, layout, 4096, training_recipe).step_us == pytest.approx(whole, rel=2e-3)


def test_overlap_hides_communication_and_never_computing() -> None:
    one = PassCost(forward=10, backward=20, weights=5, forward_exposed=4, backward_exposed=4, forward_wire=4, backward_wire=4)
    assert one.overlapped(0).forward + one.overlapped(0).backward == 22
    held = one.overlapped(0.25)
    assert held.forward + held.backward == pytest.approx(24)
    bound = PassCost(forward=30, backward=30, forward_exposed=28, backward_exposed=28, forward_wire=28, backward_wire=28).overlapped(0)
    assert bound.forward + bound.backward == pytest.approx(56)


@pytest.mark.parametrize(("cluster", "hidden_most"), [("hw-dgx-h100", 7 / 8), ("hw-pcie-l40s", 0.4)])
def test_pieces_of_a_collective_hide_behind_their_products_alone(cluster: str, hidden_most: float) -> None:
    """Over PCIe collectives take longer than all products of a layer, which hide no more of them than they take."""
    machine, layout = Machine(load_cluster(cluster)), layout_of("tp=8,m=2")
    recipes = (TrainingRecipe(overlap_tp=way) for way in (False, True))
    apart, beside = (Block(load_whole("llama3-8b"), machine, layout, 4096, one).layer(5, None).parts for one in recipes)
    hidden = apart["tensor parallel"] - beside["tensor parallel"]
    assert 0 < hidden <= hidden_most * apart["tensor parallel"]
    assert hidden <= beside["attention"] + beside["dense FFN"]


def test_launches_of_a_pass_are_neither_computing_nor_exposed() -> None:
    one = PassCost(forward=10, backward=20, weights=5, forward_exposed=4, backward_exposed=3, forward_host=2, backward_host=6)
    assert (one.waits(), one.waits_backward(), one.waits_in_pair(one)) == ((4, 2, 0, 0), (3, 6, 0, 0), (0, 0, 0, 0))  # launches get time
    bound = replace(one, forward_launches=10, backward_launches=25)
    assert (bound.pair_with(bound), bound.waits_in_pair(bound)) == (35, (0, 15, 0, 0))  # launches bind: no hidden exchange gains
    assert replace(one, backward_exposed=18).waits_backward() == (14, 6, 0, 0)  # the rest hides behind weight gradients, which are apart
    assert replace(one, forward_wire=40, backward_wire=40).waits_in_pair(one) == (15, 0, 0, 0)
    hidden, short = one.as_merged(BlockTimes(5, 21, 24)), one.as_merged(BlockTimes(3, 15, 18))
    assert (hidden.waits(), hidden.waits_backward()) == ((0, 1, 0, 0), (0, 5, 0, 0))  # computing takes 4 and 16
    assert (short.waits(), short.waits_backward()) == ((0, 0, 0, 0), (0, 0, 0, 0))


def test_context_ranks_exchange_inside_their_domain() -> None:
    model, machine = load_whole("llama3-8b"), Machine(load_cluster("hw-dgx-b200"))
    long = layout_of("cp=8")
    ways = {way: step_costs(model, machine, long, 131072, None, training_recipe=TrainingRecipe(context=way)).stages[0] for way in ("a2a", "p2p")}  # type: ignore[arg-type]
    assert ways["a2a"].parts["context parallel"] > 0
    assert ways["p2p"].parts["context parallel"] == 0  # a ring hides behind long attention


def test_ranks_that_share_an_expert_gather_its_rows_and_scatter_its_sums() -> None:
    model, machine, training_recipe = load_whole("qwen3-30b"), Machine(load_cluster("hw-dgx-b200")), TrainingRecipe(dispatcher="alltoall")
    whole, shared = (
        step_costs(model, machine, layout_of(text), 4096, None, training_recipe=training_recipe) for text in ("ep=4,dp=8", "ep=4,etp=2,dp=8")
    )
    parts = shared.stages[0].parts
    assert "expert tensor parallel" not in whole.stages[0].parts
    assert model.layer is not None
    rows = 2 * 2048 * 4096 * 8 * 2  # both ranks' tokens, for each expert of a token
    both = machine.collective("all_gather", rows, 2, 1) + machine.collective("reduce_scatter", rows, 2, 1)
    assert parts["expert tensor parallel"] == pytest.approx(2 * both * model.layer.n_layers)
    assert parts["experts"] == pytest.approx(whole.stages[0].parts["experts"], rel=0.25)  # the same FLOPs


def test_sharded_weights_move_in_every_micro_batch_and_hide_behind_long_layers() -> None:
    model, machine = load_whole("llama3-70b"), Machine(load_cluster("hw-dgx-h100-x8"))
    short, long = (step_costs(model, machine, layout_of("dp=64,fsdp=64,m=2"), n, None) for n in (512, 8192))
    assert short.stages[0].parts["sharded weights"] > 0 == long.stages[0].parts["sharded weights"]
    assert short.times.reduce == short.times.gather == ((),)
    replicas = step_costs(model, machine, layout_of("dp=64,fsdp=8,m=2"), 8192, None).times
    whole = step_costs(model, machine, layout_of("dp=64,m=2"), 8192, None).times
    assert 0 < sum(replicas.reduce[0]) < sum(whole.reduce[0])
    with pytest.raises(ConfigError, match="layout: found fsdp = 3, expected a divisor of the 8 ranks of dp x cp"):
        layout_of("dp=8,fsdp=3")


def test_communication_that_holds_sms_stretches_computing_alone() -> None:
    cost = PassCost(10.0, 20.0, 6.0, 4.0, 5.0, 6.0, 7.0)
    half = cost.on_part(0.5)
    assert (half.forward, half.backward, half.weights) == (4 + 12, 5 + 30, 12)
    assert (half.forward_exposed, half.backward_wire) == (4.0, 7.0)
    model, plan = load_whole("deepseek-v2-lite"), layout_of("pp=3,ep=4,m=6")
    costs = step_costs(model, Machine(load_cluster(PAPER)), plan, 512, EpTimes(100, 150, 60, 90, 80, 90))
    assert costs.on_part(1.0) is costs
    slower = costs.on_part(0.5)
    assert slower.times.cells.forward[1] > costs.times.cells.forward[1]
    assert slower.times.cells.hop == costs.times.cells.hop
    pairs = slower.times.cells.pairs
    assert pairs is not None
    assert costs.times.cells.pairs is not None
    assert all(pairs[key] >= time for key, time in costs.times.cells.pairs.items())


def test_a_backward_pass_launches_modules_that_are_computed_again() -> None:
    """A layer of few tokens is bound by launches: recomputing core attention costs its kernel, and random states forward and around the replay."""
    dense, moe = operators(load_whole("llama3-8b"), 0), operators(load_whole("qwen3-30b"), 0)
    attention = tuple(op for op in dense if op.piece != "dense FFN")
    assert TrainingRecipe(recompute=("core_attn",)).replays(dense) == (1, (1 + 3, 0))
    assert TrainingRecipe(recompute=("layernorm",)).replays(attention) == (2, (2 + 2 * 3, 0))
    assert TrainingRecipe(recompute=("mlp",)).replays(dense) == (1, (4 + 3, 0))
    assert TrainingRecipe(recompute=("mlp",)).replays(moe) == (0, (0, 0))  # no dense FFN in this layer
    assert TrainingRecipe(recompute=("core_attn",), graphs=("attn",)).replays(attention) == (0, (0, 0))
    own = TrainingRecipe(dtype="bf16", recompute=("moe",))
    assert own.replays(moe, 4) == (1, (17 + 13 + 1 + 3, 4 * 2))  # router, dispatch and combine, activation
    assert TrainingRecipe(recompute=("full",)).replays(dense)[1] == (10 + 5 + 3, 0)
    assert TrainingRecipe(recompute=("full", "mlp")).replays(dense)[1] == (10 + 5 + 3, 0)  # launched once
    model, machine = load_whole("deepseek-v2-lite"), Machine(load_cluster("hw-dgx-h100"))
    ways = [TrainingRecipe(host=True, recompute=names) for names in ((), ("core_attn",))]
    plain, again = (Block(model, machine, layout_of("tp=1"), 64, one).layer(0, None) for one in ways)
    each = machine.cluster.fitted["training.forward_us"]
    assert again.forward - plain.forward == pytest.approx(each)
    assert again.backward + again.weights - plain.backward - plain.weights == pytest.approx(4 * each)


@pytest.mark.parametrize(("cluster", "kind", "per"), [("hw-dgx-h100", "fp8", 6), ("hw-dgx-b200", "fp8", 5), ("hw-dgx-b200", "mxfp8", 4.0625)])
def test_bytes_of_casts(cluster: str, kind: str, per: float) -> None:
    """Blackwell takes FP8 with one scale in any layout, so no transposed copy is written."""
    machine = Machine(load_cluster(cluster))
    assert machine.cast_bytes(kind) == per
    block = Block(load_whole("llama3-8b"), machine, layout_of("tp=1"), 64, TrainingRecipe(dtype=kind))  # type: ignore[arg-type]
    (out,) = [op for op in operators(block.model, 0) if isinstance(op, Weight) and op.weight == "out"]
    assert block.product(out).parts["casts"] == pytest.approx(2 * machine.memory(per * 64 * 4096))


def test_gemms_with_a_scale_per_block_take_longer() -> None:
    machine = Machine(load_cluster("hw-gb200-nvl72"))
    one, other = (machine.gemm(16384, 4096, 4096, kind) for kind in ("fp8", "mxfp8"))
    assert other / one == pytest.approx(7.161 / 6.812)


def hybrid(**training_recipe: Any) -> Block:
    layout = layout_of("ep=8,gpus=8,mbs=1,gbs=64")
    return Block(
        load_whole("qwen3-30b"), Machine(load_cluster("hw-dgx-b200")), layout, 4096, TrainingRecipe(dispatcher="hybrid-ep", **training_recipe)
    )


def test_a_forward_pass_knows_its_counts_behind_maps_and_the_last_rank() -> None:
    """Hybrid-EP gathers a byte per token and expert of the group; alltoall gathers none."""
    counts = hybrid().experts(None)["counts"]
    plain = Block(hybrid().model, hybrid().machine, hybrid().layout, 4096, TrainingRecipe(dispatcher="alltoall")).experts(None)["counts"]
    machine, n_bytes = hybrid().machine, 4096 * 128 * 8
    assert (plain.forward, plain.backward, counts.backward) == (machine.wait, 0.0, 0.0)
    assert counts.forward - plain.forward == pytest.approx(machine.memory(n_bytes) + machine.group(n_bytes, 8, 1))


def test_hybrid_ep_stores_own_rows_and_probabilities() -> None:
    """A GPU of eight stores eight rows where libraries send seven, and beside a row of Dispatch four bytes for each of the domain's experts."""
    block = hybrid()
    assert block.model.layer is not None
    kinds = (block.training_recipe, TrainingRecipe(dispatcher="alltoall"))
    single, plain = (exchange(block.machine, block.layout, block.model.layer, 65536, kind) for kind in kinds)
    assert single.dispatch / single.combine == pytest.approx(1 + 4 * 128 / (2 * 2048), rel=0.02)
    assert plain.dispatch == pytest.approx(plain.combine, rel=0.02)


def test_rows_of_narrow_experts_are_padded_but_in_a_whole_graph() -> None:
    rows, width = 4096 * 8, 2 * 2048
    padded, plain, graph = (hybrid(dtype=d, graphs=g).experts(None)["permutations"] for d, g in (("fp8", ()), ("bf16", ()), ("fp8", (WHOLE,))))
    assert padded.forward - plain.forward == pytest.approx(hybrid().machine.memory(2 * 2 * width * rows, 2))
    assert graph.forward == plain.forward


def test_what_comes_before_the_count_is_not_hidden_behind_launches() -> None:
    """Launches behind the count take longer than its kernels: the pass is as long as what is before the count, and those launches."""
    block = hybrid(dtype="bf16", host=True, graphs=("attn", "moe_router", "moe_preprocess"))
    before = sum((one.forward for one in block.pieces(1)[0].values()), 0.0)
    assert block.model.layer is not None
    sent = exchange(block.machine, block.layout, block.model.layer, 4096, block.training_recipe).dispatch  # Hybrid-EP sums its counts behind Dispatch
    ahead = before + block.pieces(1)[1]["router"].forward + block.experts(None)["counts"].forward + sent
    rest = block._launched_ops(1)[1]
    assert block.training_recipe.launches(rest, 16)[0] == (5, 16 * 2 + 5 + 2)
    behind = block.machine.launch(*block.training_recipe.launches(rest, 16)[0], "forward")
    assert block.layer(1, None).forward == pytest.approx(ahead + behind)
    eager = replace(
        block, training_recipe=TrainingRecipe(dtype="bf16", dispatcher="hybrid-ep", host=True)
    )  # launches bind: the exchange of counts comes last
    waited = eager.layer(1, None).forward - block.experts(None)["counts"].forward - sent
    assert waited == pytest.approx(eager.launches(1)[0])


def test_the_graph_of_preprocessing_replays_the_counts_of_alltoall() -> None:
    router = [op for op in operators(load_whole("qwen3-30b"), 0) if op.piece == "router"]
    eager, graphed = (TrainingRecipe(dispatcher="alltoall", graphs=graphs) for graphs in ((), ("moe_router", "moe_preprocess")))
    assert eager.launches(router, 0, eager.sorts()[0])[0] == (25.0, 0.0)
    assert graphed.launches(router, 0, graphed.sorts()[0])[0] == (0.0, 0.0)


def test_fused_experts_move_neither_activations_nor_their_casts() -> None:
    plain, fused = (hybrid(dtype="mxfp8", graphs=graphs).experts(None) for graphs in ((), (WHOLE,)))
    assert plain["expert activation"].forward > fused["expert activation"].forward == 0.0
    ratio = (plain["experts"].parts["casts"] - 4 * MEMORY_START) / (fused["experts"].parts["casts"] - 2 * MEMORY_START)
    assert ratio == pytest.approx(1 + 3 * 768 / (2 * 2048))  # one width forward, two backward, beside the hidden size in both
    assert fused["experts"].parts["experts"] == plain["experts"].parts["experts"]


def test_a_router_that_is_not_fused_launches_more() -> None:
    """72 kernels where the fused one has 31; its product stays one operation."""
    router = [op for op in operators(load_whole("moonlight-16b"), 1) if op.piece == "router"]
    forward, backward = TrainingRecipe(router_fusion=False).launches(router)
    assert forward[0] == pytest.approx(1 + 16 * 72 / 31)
    assert backward[0] == pytest.approx(2 + 10 * 72 / 31)


def test_eager_kernels_of_gpt_oss_move_their_rows() -> None:
    """Clamps 8 and 10 rows beside the fused activation, the bias behind the experts 14 and 18, positions with YaRN's scale 12 and 10."""
    plain, eager = ({op.name: op for op in operators(load_whole(name), 1) if isinstance(op, MemoryOp)} for name in ("qwen3-30b", "gpt-oss-120b"))
    activation, width = eager["experts"], 2880
    assert (activation.forward, activation.backward) == (11 * width, 15 * width)
    assert plain["experts"].forward == 3 * 768
    bias, positions = eager["expert biases"], eager["rope and cache"]
    assert (bias.forward, bias.backward, bias.kernels) == (14 * width, 18 * width, 0)  # an engine fuses it
    assert (positions.forward, positions.backward) == (12 * 72 * 64, 10 * 72 * 64)
    assert "expert biases" not in plain


def test_scaled_gradients_and_the_look_for_nan_are_bytes_of_the_end() -> None:
    """Scaling reads and writes every gradient of several replicas, the look for NaN reads it."""
    model, machine = load_whole("llama3-8b"), Machine(load_cluster("hw-dgx-h100"))
    rate = machine.update(1e9) - machine.update(0)
    for layout, turns in (("dp=8", 3), ("tp=8", 1)):
        plain, lean = (
            step_costs(model, machine, layout_of(layout), 4096, None, training_recipe=TrainingRecipe(plain_ddp=more)).times.optimizer[0]
            for more in (True, False)
        )
        held = rank_parameters(model, layout_of(layout), chunks_of(model, layout_of(layout))).dense
        assert (plain - lean) / 1e6 == pytest.approx(turns * 4 * held / 1e9 * rate, rel=1e-6)


def test_gradients_move_as_wide_as_memory_holds_them() -> None:
    """Megatron-LM, --grad-reduce-in-bf16; without a distributed optimizer gradients are all-reduced, and nobody gathers parameters."""
    model, machine, layout = load_whole("llama3-8b"), Machine(load_cluster("hw-dgx-h100")), layout_of("dp=8")
    plain, narrow, whole = (
        step_costs(model, machine, layout, 4096, None, training_recipe=TrainingRecipe(formats=Formats(state=state), overlap_dp=False)).times
        for state in ("bf16", "bf16-gradients", "bf16-whole")
    )
    held, rate = rank_parameters(model, layout, chunks_of(model, layout)).dense, machine.update(1e9) - machine.update(0)
    assert sum(narrow.reduce[0]) / 1e6 == pytest.approx(machine.group(2 * held, 8, 1), rel=1e-6)
    assert sum(plain.reduce[0]) / 1e6 == pytest.approx(machine.group(4 * held, 8, 1), rel=1e-6)
    assert sum(whole.reduce[0]) / 1e6 == pytest.approx(machine.group(8 * held, 8, 1), rel=1e-6)
    assert plain.gather == narrow.gather
    assert whole.gather == ((),)
    saved = 2 * 4 * held / 8 + 2 * held  # the norm, clipping (twice) and Adam pass a shard, and all are zeroed
    assert (plain.optimizer[0] - narrow.optimizer[0]) / 1e6 == pytest.approx(saved / 1e9 * rate, rel=1e-6)
    assert (whole.optimizer[0] - plain.optimizer[0]) / 1e6 == pytest.approx(46 * held * 7 / 8 / 1e9 * rate, rel=1e-6)
    shared = [
        step_costs(model, machine, layout_of("dp=8,fsdp=8"), 4096, None, training_recipe=TrainingRecipe(formats=Formats(state=state))).times.optimizer
        for state in ("bf16", "bf16-whole")
    ]
    assert shared[0] == shared[1]  # FSDP shards the optimizer, whatever the state says
    scattered = [
        beside(model, machine, layout_of("dp=8,fsdp=8"), 0, PassCost(), recipe=RECIPES[name]).backward for name in ("bf16", "bf16-gradients")
    ]
    layer = layer_shards(model, layout, 0).dense
    assert scattered[0] - scattered[1] == pytest.approx(machine.group(4 * layer, 8, 1) - machine.group(2 * layer, 8, 1))


def test_linear_attention_costs_less_than_attention_over_long_sequences() -> None:
    machine, training_recipe = Machine(load_cluster("hw-dgx-h100-x8")), TrainingRecipe(dispatcher="deepep")
    model, plan = load_whole("qwen3-next-80b"), layout_of("ep=8,m=2")
    for sequence, slower in ((2048, False), (131072, True)):
        block = Block(model, machine, plan, sequence, training_recipe)
        linear, full = (block.pieces(number)[0]["core attention"] for number in (0, 3))
        assert linear.backward > linear.forward > 0
        assert (full.forward > linear.forward) == slower


@pytest.mark.parametrize(("name", "sequence"), [("deepseek-v3.2", 1024), ("deepseek-v3.2", 131072), ("deepseek-v3", 4096)])
def test_a_backward_pass_has_the_pairs_of_its_forward_pass(name: str, sequence: int) -> None:
    """Sparse attention (V3.2) has gradients of the tokens that its forward pass chose."""
    (core,) = [op for op in operators(load_whole(name), 5) if isinstance(op, Core)]
    batch, machine, formats = prompt_batch(sequence, sequence, 0), Counting(load_cluster(PAPER)), formats_of("bf16")
    (forward,) = [time.us for time in kernels(machine, core, batch, formats) if time.name == "attention prefill"]
    assert gradients(machine, core, batch, formats).inputs == 2 * forward


@pytest.mark.parametrize(("recipe", "degrees"), [(TrainingRecipe(), "tp=8,m=2"), (TrainingRecipe(context="a2a"), "cp=8,m=2")])
def test_collectives_that_nothing_hides_are_no_computing(recipe: TrainingRecipe, degrees: str) -> None:
    """Over PCIe they take most of a layer, which no part of it says was computed; computed again, they are exchanged again."""
    one = Block(load_whole("llama3-8b"), Machine(load_cluster("hw-pcie-l40s")), layout_of(degrees), 4096, recipe).layer(5, None)
    moved = sum(us for name, us in one.parts.items() if name in ("tensor parallel", "context parallel"))
    waits = [sum(way) for way in zip(one.waits(), one.waits_backward(), strict=True)]
    assert 0 < moved < one.forward + one.backward
    assert waits[3] == pytest.approx(moved)
    assert one.recomputed().waits_backward()[3] == pytest.approx(moved)
