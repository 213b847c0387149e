"""Cases of `STORED`: small models of every kind of attention and FFN, no two sizes equal, under layouts of unequal degrees."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.costs.machine import Machine
from dysharp.measured.training.step_time import estimate
from dysharp.model import flops, state, weights
from dysharp.model.layout import KINDS, check_domain, check_layout, chunks_of, layout_of
from dysharp.model.operators import operators
from dysharp.planning.schedules import ranks_of
from dysharp.program import Nature, Program
from dysharp.runs.store import digest_of
from dysharp.specs import Model, load_cluster
from dysharp.specs.whole import Attention, LinearAttention, WholeModel
from dysharp.systems import get_system
from dysharp.training import memory
from dysharp.training.answers import energy_of, gains, split_step
from dysharp.training.block import Block
from dysharp.training.cost import BlockTimes, EpTimes, PassCost
from dysharp.training.costs import beside, step_costs
from dysharp.training.graph import replay, replay_schedule, step_graph
from dysharp.training.megatron import _read_settings, arguments_from
from dysharp.training.memory import Saving
from dysharp.training.merged import MergedKernel, _sms_of, block_kernels, block_times, kernels_program
from dysharp.training.moe_block import exchange
from dysharp.training.overlap import phases_of
from dysharp.training.recipe import WHOLE, SubLayers, TrainingRecipe
from dysharp.training.schedules import Times, all_schedules, in_flight, make_schedule
from dysharp.training.step_timeline import step_timeline
from dysharp.training.wires import send
from dysharp.workload import make_routing
from tests.stored_values import Cases, Row, Table, digest
from tests.training.test_layout import domains

STORED = Table(__file__, close=2e-6, zero=1e-9, whole=True, packed=True)


def layer(hidden: int, **more: Any) -> Model:
    given: dict[str, Any] = {"name": "layer", "hidden": hidden, "tokens_per_gpu": 56, "n_matrices": 3, "element_bytes": 2, "gemm_dtype": "bf16"}
    return Model(**(given | more))


MODELS = {
    "sparse": WholeModel(
        "sparse", "made up", 640, Attention(
            "mla", 12, q_rank=192, kv_rank=160, nope_dim=80, rope_dim=32, v_dim=96, index_heads=6, index_dim=48, index_top=512, out_bias=True,
        ), 5003, layer(640, expert_hidden=176, n_experts=24, topk=5, n_layers=9, gemm_dtype="fp8", n_group=4, topk_group=2),
        dense_layers=2, dense_hidden=1408, shared_hidden=352, norms_per_layer=4, router_bias=True, mtp=2,
    ),
    "lite": WholeModel(
        "lite", "made up", 768, Attention("mla", 10, kv_rank=224, nope_dim=64, rope_dim=24, v_dim=72), 3001,
        layer(768, expert_hidden=272, n_experts=20, topk=3, n_layers=11, n_matrices=2), dense_layers=1, dense_hidden=1100, mtp=1, tied=True,
    ),
    "windowed": WholeModel(
        "windowed", "made up", 576, Attention(
            "gqa", 18, kv_heads=6, head_dim=40, qk_norm=True, qkv_bias=True, out_bias=True, sinks=True, window=96, window_every=3,
        ), 4000, layer(576, expert_hidden=208, n_experts=30, topk=4, n_layers=8), head_bias=True, expert_bias=True, router_bias=True,
    ),
    "linear": WholeModel(
        "linear", "made up", 448, Attention("gqa", 8, kv_heads=2, head_dim=72, qk_norm=True, gated=True), 2500,
        layer(448, expert_hidden=144, n_experts=36, topk=6, n_layers=7, gemm_dtype="fp8"), shared_hidden=160, shared_gate=True,
        linear=LinearAttention(4, 12, 40, 56, 3), full_every=3, mtp=1,
    ),
    "dense": WholeModel(
        "dense", "made up", 384, Attention("gqa", 6, kv_heads=3, head_dim=80, qk_norm=True, qk_norm_joint=True), 1000, dense_layers=10,
        dense_hidden=1500, dense_matrices=2, dense_bias=True, norm_vectors=2, positions=700, tied=True,
    ),
}  # fmt: skip
LAYOUTS = {
    "sparse": (
        "tp=2,cp=3,pp=3,vpp=2,ep=4,etp=2,dp=4,mbs=2,m=12,stages=Ett|ttt|tt|t|tt|tmmL", "tp=2,cp=2,ep=12,dp=9,mbs=3,fsdp=6,m=2", "tp=4,ep=8,dp=2",
    ),
    "lite": ("pp=4,ep=5,etp=2,dp=10,mbs=3,m=11", "tp=5,pp=2,ep=20,dp=8,m=7,stages=Et*3|t*9mL", "tp=2,cp=4,pp=2,ep=10,dp=5,fsdp=20,m=3"),
    "windowed": ("tp=3,cp=2,pp=4,ep=6,dp=3,mbs=2,m=9", "tp=2,pp=2,vpp=2,ep=15,etp=2,dp=30,m=8", "ep=30,dp=30,fsdp=10"),
    "linear": ("tp=2,pp=7,ep=12,dp=12,mbs=3,m=15", "tp=4,ep=9,etp=4,dp=18,m=2", "ep=6,dp=12,fsdp=12,pp=7,m=10"),
    "dense": ("tp=3,cp=4,pp=5,vpp=2,dp=2,mbs=2,m=10", "tp=2,cp=4,dp=3,fsdp=6,m=4", "tp=6,pp=2,dp=7,m=3"),
}  # fmt: skip
OF_MEMORY = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "shared_experts")
TRAINING_RECIPES = {
    "rows": TrainingRecipe(),
    "deepep": TrainingRecipe("fp8", "deepep", host=True, recompute=OF_MEMORY, plain_ddp=True),
    "hybrid-ep": TrainingRecipe("mxfp8", "hybrid-ep", overlap_ep=True, overlap_tp=True, graphs=("attn", "moe_router"), host=True),
    "alltoall": TrainingRecipe("bf16", "alltoall", overlap_dp=False, host=True, recompute=("moe",), context="a2a"),
    "whole": TrainingRecipe("mxfp8", "hybrid-ep", graphs=(WHOLE,), host=True, frozen=True, counts=False),
    "sub-layers": TrainingRecipe("fp8", "alltoall", host=True, recompute=("full",), tensor=SubLayers("none", (7.0, 11.0), (17.0, 29.0))),
}
CLUSTERS = {"rows": "paper-gh200-nvl32-x2", "deepep": "hw-dgx-h100-x8", "hybrid-ep": "hw-dgx-b200", "alltoall": "hw-dgx-b200-x8",
            "whole": "hw-gb200-nvl72-x2", "sub-layers": "hw-dgx-h800"}  # fmt: skip
ROW = EpTimes(310.0, 730.0, 90.0, 210.0, 130.0, 250.0, 6000.0)
SEQUENCE = 1536
SAVINGS = {
    "all": Saving(), "own": Saving(OF_MEMORY, fc2_output=True, sequence_parallel=False, fused_loss=False, imbalance=1.25),
    "moe": Saving(("moe",), fc2_output=True, imbalance=1.5), "full": Saving(("full",), fused_loss=False),
}  # fmt: skip


def machine(name: str) -> Machine:
    """The machine of a packaged cluster."""
    return Machine(load_cluster(name))


def numbers(cost: PassCost) -> tuple[float, ...]:
    """All of a cost but its parts."""
    return astuple(cost)[:9]


def accounts(model: WholeModel) -> Iterator[Row]:
    """Parameters, FLOPs and saved tensors of a model."""
    found = weights.parameters_of(model)
    for part in weights.PARTS:
        yield f"parameters of {part}", (found.parts[part], found.active_parts[part])
    yield "parameters", (found.total, found.active, found.active_inner, found.active_both)
    for sequence in (96, SEQUENCE):
        for mtp in (True, False):
            done = flops.flops_of(model, sequence, mtp)
            yield f"flops, {sequence}, {mtp}", (*done.forward.values(), done.data_gradients, done.weight_gradients, done.executed)
        yield f"model flops, {sequence}", (flops.model_flops(model, sequence, one) for one in flops.CONVENTIONS.values())
    layout = layout_of(LAYOUTS[model.name][0])
    kinds = sorted({(model.is_moe(n), model.is_linear(n)) for n in range(model.n_layers)})
    for name, saving in SAVINGS.items():
        for moe, linear in kinds:
            for fp8 in (False, True):
                kind = f"{'M' if linear else '*'}{'E' if moe else '-'}"
                tensors = memory.saved_of_layer(model, layout, kind, saving, state.RECIPES["fp8" if fp8 else "bf16"])
                dropped = [memory.is_dropped(one, saving) for one in tensors]
                yield f"saved, {name}, {moe}, {linear}, {fp8}", (*(one.bytes for one in tensors), *dropped)
        for moe in {one for one, _ in kinds}:
            kind = "*E" if moe else "*-"
            sizes = (memory.layer_transient(model, layout, kind, saving), memory.gradient_bytes(model, layout, kind, saving))
            yield f"backward, {name}, {moe}", (*sizes, memory.head_bytes(model, layout, saving))


def cut(model: WholeModel, text: str) -> Iterator[Row]:
    """State and peak memory of every rank of a layout."""
    layout = layout_of(text)
    chunks = chunks_of(model, layout)
    for at, chunk in enumerate(chunks):
        yield f"chunk {at}", (*astuple(chunk), *astuple(state.rank_parameters(model, layout, [chunk])), state.dummy_bytes(model, layout, [chunk]))
    held = state.rank_parameters(model, layout, chunks)
    for name, recipe in state.RECIPES.items():
        copied = state.rank_parameters(model, layout, chunks, recipe.fp8)
        yield f"state, {name}", state.state_bytes(held, copied, layout, recipe).values()
    yield "buffers", (memory.buffer_bytes(name, model, layout, SEQUENCE) for name in memory.DISPATCHERS)
    yield "groups", (one for kind in KINDS for one in (getattr(layout, kind), layout.stride(kind), domains(layout, kind, 8)))
    group = layout.pp * (layout.micro_batches // layout.pp)
    for name in ("interleaved", "interleaved-zb") if layout.vpp > 1 else ("1f1b", "zb-h1", "zb-2p", "gpipe"):
        order = make_schedule(name, layout.pp, group, layout.vpp) if layout.pp > 1 else make_schedule("1f1b", 1, layout.micro_batches)
        for key, saving in SAVINGS.items():
            if name in ("1f1b", "zb-h1", "interleaved-zb") or key == "own":
                done = memory.memory_of(model, layout, SEQUENCE, state.recipe_of("fp8" if key == "own" else "bf16"), saving, order, {"context": 9e8})
                for rank in done.ranks:
                    yield f"memory, {name}, {key}, {rank.rank}", (*rank.lines.values(), done.reserved(rank), rank.parameters, rank.in_flight)
                yield f"held, {name}, {key}", (*done.peak.ops.values(), str(done.peak.held), done.peak.rank)


def block(model: WholeModel, text: str, way: str) -> Iterator[Row]:
    """Pieces of every kind of layer, and the ends, under one training recipe on one cluster."""
    layout = layout_of(text)
    one = Block(model, machine(CLUSTERS[way]), layout, SEQUENCE, TRAINING_RECIPES[way])
    ep = ROW if way == "rows" and model.layer else None
    kinds: dict[Any, int] = {model.kind(number): number for number in range(model.n_layers)}
    for number in kinds.values():
        before, behind = one.pieces(number)
        pieces = {**before, **behind, **(one.experts(ep) if model.is_moe(number) else {})}
        for name, piece in pieces.items():
            yield f"layer {number}, {name}", numbers(piece)
        yield f"replayed {number}", numbers(sum(one.with_replays(pieces).values(), PassCost()))
        done = one.layer(number, ep)
        yield f"layer {number}", (*numbers(done), *done.parts.values())
        yield f"launches {number}", one.launches(number)
        if layout.fsdp > 1:
            shards = [beside(model, one.machine, layout, number, some, switched) for some in (PassCost(), done) for switched in (False, True)]
            yield f"shards {number}", (us for cost in shards for us in (cost.forward, cost.backward))
    ends = one.ends(True, model.mtp, 1 + model.mtp, ep)
    yield "ends", (*numbers(ends), *ends.parts.values())
    if model.layer:
        sent = exchange(
            one.machine,
            layout,
            model.layer,
            one.tokens / layout.tp,
            replace(one.training_recipe, dispatcher=one.training_recipe.dispatcher or "deepep"),
        )
        yield "exchange", astuple(sent)[:5]


def step(model: WholeModel, text: str, way: str) -> Iterator[Row]:
    """Costs of a whole step and its estimate."""
    layout, on, training_recipe = layout_of(text), machine(CLUSTERS[way]), TRAINING_RECIPES[way]
    ep = ROW if way == "rows" and model.layer else None
    costs = step_costs(model, on, layout, SEQUENCE, ep, training_recipe=training_recipe)
    times = costs.times
    for at, stage in enumerate(costs.stages):
        yield f"stage {at}", numbers(stage)
        yield f"traffic {at}", (*(f(one[at]) for one in (times.reduce, times.gather) for f in (len, sum)), times.optimizer[at])
    twice = step_costs(model, on, layout, SEQUENCE, ep, 2, training_recipe)
    yield "two copies", (*map(sum, twice.times.reduce), *map(sum, twice.times.gather), *twice.times.optimizer)
    yield "sends", (times.send, times.cells.hop, times.late_gather)
    if times.cells.pairs:
        yield "pairs", times.cells.pairs.values()
    slower = costs.on_part(0.75)
    yield "part", (*slower.times.cells.forward, *slower.times.cells.dgrad, *slower.times.cells.wgrad)
    n = layout.pp * 3
    order = make_schedule("interleaved" if layout.vpp > 1 else "zb-h1", layout.pp, n, layout.vpp)
    done = replay(step_graph(order, times))
    split = split_step(done)
    yield "ranks", (us for rank in split.ranks for us in rank.values())
    yield "path", (*split.path.values(), split.total, split.slowest, split.share("bubble"), len(done.critical_path()))
    yield "gains", gains(order, times, {"no EP": replace(times, send=2 * times.send)}).values()
    line = step_timeline(done)
    columns = (line.slices.track, line.slices.start, line.slices.end, line.slices.name)
    yield "timeline", (line.n_gpus, line.time_ps, len(line.tracks), *line.names[:3], *(int(column.sum()) for column in columns))
    yield "energy", astuple(energy_of(model, on, layout, SEQUENCE, ep))
    if way != "rows":
        whole = estimate(model, on, layout, SEQUENCE, training_recipe)
        intercept = whole.step_us - whole.slope_us * whole.costs.layout.micro_batches
        yield "estimate", (whole.step_us, whole.slope_us, intercept, whole.tokens_per_s_gpu, *whole.parts().values())


def rates(way: str) -> Iterator[Row]:
    """A machine: its rates, groups and sends at the sizes where a domain is full and one more."""
    on = machine(CLUSTERS[way])
    yield "rates", (on.link, on.nic, on.domain, on.hop, on.wait, on.small(3), on.launch(5, 7, "forward"), on.launch(5, 7, "backward"))
    dtypes = ["bf16", "fp8", *(["mxfp8"] if on.cluster.gpu else []), *(["fp4"] if "b200" in on.cluster.gpu else [])]
    for dtype in dtypes:
        for shape in ((3000, 700, 500, 1), (64, 7000, 5000, 3), (20000, 9000, 3000, 1)):
            m, n, k, groups = shape
            yield f"gemm {dtype} {m}", (on.gemm(m, n, k, dtype, groups), on.gemm(m, n, k, dtype, groups, accumulate=True))
        if dtype != "mxfp8":
            yield f"flops {dtype}", (on.flops(3e12, dtype),)
    yield "memory", (on.memory(0), on.memory(3e8), on.memory(3e8, 0.5))
    d = on.domain
    for size, stride in ((1, 1), (d, 1), (d // 2, 2), (d + 8, 1), (4, d), (6, d // 4), (3, d // 2), (2, 2 * d)):
        kinds: tuple[Any, ...] = ("all_gather", "reduce_scatter", "alltoall")
        yield f"{size} by {stride}", (on.group(7e7, size, stride), *(on.collective(kind, 7e7, size, stride) for kind in kinds))
    for text in (f"pp={d}", f"pp={d + 1}"):
        sent = send(on, 5e7, layout_of(text))
        yield f"send, {text}", (max(sent.near, sent.far), on.latency(layout_of(text)))


def training_recipe(way: str) -> Iterator[Row]:
    """Launches of every row of kernels, and of modules that run again."""
    own = TRAINING_RECIPES[way]
    ops = [op for model in MODELS.values() for op in operators(model, model.n_layers - 1)]
    for piece in sorted({op.piece for op in ops}):
        yield piece, (one for way_of in own.launches([op for op in ops if op.piece == piece], 7) for one in way_of)
    for module in (*memory.MODULES, memory.FULL):
        saved, again = replace(own, recompute=(module,)).replays(ops, 5)
        yield f"again {module}", (saved, *again)


def orders(name: str) -> Iterator[Row]:
    """Orders of a schedule: hashes of the texts of all ranks, chunks in flight, replays with unequal stages."""
    family = all_schedules()[name]
    for ranks, batches, chunks, group in ((2, 8, 2, 0), (4, 8, 3, 0), (4, 16, 2, 8), (6, 18, 3, 6), (6, 12, 2, 12), (3, 7, 1, 0), (1, 4, 1, 0)):
        try:
            n = family.stages(ranks, chunks)
            forward, backward, gradients = (tuple(a + b * (s * 5 % 7) for s in range(n)) for a, b in ((20, 3), (23, 2), (11, 1)))
            times = Times(forward, backward, gradients, 4, 0.9)
            order = make_schedule(name, ranks, batches, chunks, group, times)
            done, idle = replay_schedule(order, times)
        except ConfigError as error:
            yield f"{ranks} {batches} {chunks} {group}", (str(error),)
            continue
        text = "\n".join(order.text(rank) for rank in range(ranks))
        busy = (idle.longest, idle.of_least_busy, idle.rate(100.0), done.makespan)
        yield f"{ranks} {batches} {chunks} {group}", (digest(text), *in_flight(order), *in_flight(order, "W"), *busy)


def costs() -> Iterator[Row]:
    """What becomes of a cost: merged, overlapped, beside another, on part of the SMs."""
    one = PassCost(31.0, 57.0, 23.0, 11.0, 17.0, 13.0, 19.0, parts={"a": 70.0, "b": 41.0})
    other = PassCost(29.0, 47.0, 19.0, 5.0, 7.0, 43.0, 37.0, parts={"b": 3.0, "c": 5.0})
    merged, late = one.as_merged(BlockTimes(37.0, 83.0, 101.0)), other.as_merged(BlockTimes(33.0, 61.0, 71.0))
    for name, cost in {"sum": one + other, "again": one.recomputed(), "merged": merged, "part": one.on_part(0.7), "overlapped": one.overlapped(0.2),
                       "bound": other.overlapped(0.3), "no wire": PassCost(3.0, 4.0).overlapped(0.5), "sums": merged + late}.items():  # fmt: skip
        yield name, (*numbers(cost), *cost.parts.values())
    yield "pairs", (a.pair_with(b) for a in (one, other, merged, merged + late, PassCost()) for b in (one, other, late, PassCost()))
    yield "phases", astuple(phases_of(one, other, (2.0, 3.0, 5.0, 7.0), 0.8))
    yield "without wire", astuple(ROW.without_wire())


ARGUMENTS = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 3 --num-layers-per-virtual-pipeline-stage 2 --num-gpus 72 --micro-batch-size 2",
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 4 --world-size=32 --seq-length 512",
    "--pipeline-model-parallel-size 4 --num-layers-in-first-pipeline-stage 3 --world-size 8 --use-megatron-fsdp --fp8-format hybrid --fp16 "
    "--data-parallel-sharding-strategy optim_grads_params",
    "--pipeline-model-parallel-size 7 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split --nproc-per-node 7 --nnodes 2",
    "--pipeline-model-parallel-size 3 --num-layers-in-last-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2 --num-gpus 9",
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*5,t|t*6L --global-batch-size 24 --num-gpus 4 --moe-router-topk 5",
    "--recompute-granularity selective --recompute-modules moe_act layernorm attn --nnodes 3 --exp-avg-dtype bf16 --fp8 e4m3 --cuda-graph-impl x",
    "--recompute-granularity full --num-gpus 6 --context-parallel-size 2 --expert-model-parallel-size 6 --expert-tensor-parallel-size 1",
    "--recompute-activations --num-gpus 2 --no-overlap-p2p-communication --recompute-method uniform --moe-token-dispatcher-type flex",
    "--global-batch-size 8", "--num-gpus 0", "--num-gpus $GPUS", "--hidden-size 641 --num-gpus 2", "--num-gpus 2 --num-experts 25",
    "--tensor-model-paralel-size 2", "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 --num-gpus 2",
    "--num-gpus 2 --data-parallel-sharding-strategy optim --use-torch-fsdp2", "--num-gpus 8 --use-torch-fsdp2 --context-parallel-size 2",
    "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 12 --num-gpus 3", "words --before=1 --num-gpus=3 -x 'open",
    "--pipeline-model-parallel-size 2 --num-gpus 2 --pipeline-model-parallel-layout Et|t|tL",
)  # fmt: skip
FILES = {
    "a.yaml": "model:\n  tensor_model_parallel_size: 2  # two\n  recompute_granularity: selective\n  recompute_modules:\n  - moe_act\n  - 'mlp'\n"
              "world-size: 16\nnothing: null\nlist: [a, \"b\"]\nfp8: e4m3\nexp_avg_dtype: bf16\n",
    "b.yml": "num_gpus: 8\n- {\n", "c.toml": "num_gpus = 8\n[train]\nmicro_batch_size = 2\nglobal_batch_size = 32\nempty = ''\n",
    "e.json": '{"num_gpus": 8, "model": {"recompute_modules": ["mlp", "moe"], "recompute_granularity": "selective", "tp": null}}',
    "f.txt": "--num-gpus 4",
    "g.py": "BASE = P(num_gpus=8, micro_batch_size=2)\nMORE = replace(BASE, micro_batch_size=3)\n\n\ndef made():\n    cfg.model.num_gpus = 12\n"
            "    cfg.seq_length = 256\n    f(micro_batch_size=4, x=g())\n",
}  # fmt: skip


def settings() -> Iterator[Row]:
    """What arguments and recipe files of Megatron say about a step."""
    for text in ARGUMENTS:
        for model, more in (("sparse", ""), ("lite", ""), ("lite", "m=6,tp=1")):
            key = f"{model} {text} {more}"
            try:
                found = arguments_from(text, MODELS[model], more)
                yield key, (found.layout, found.sequence, str(found.recompute), found.precision, *found.notes)
            except ConfigError as error:
                yield key, (str(error),)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            (Path(folder) / name).write_text(content)
            for asked in (name,) if name != "g.py" else ("g.py:made", "g.py:MORE", "g.py:BASE", "g.py:none"):
                try:
                    yield asked, (str(sorted(_read_settings(f"{folder}/{asked}").items(), key=str)),)
                except ConfigError as error:
                    yield asked, (str(error).replace(folder, ""),)


def merged() -> Iterator[Row]:
    """Programs of MoE blocks with the kernels beside the experts: each of their tables."""
    cluster, model = load_cluster("paper-gh200-nvl32").with_gpus(4), MODELS["sparse"].layer
    assert model is not None
    known = get_system("deepep")
    routing = known.served(make_routing("lognormal:0.6", model, 4, 40, seed=1), known.options())
    ways = [known.plan(model, cluster, routing, way, known.options()) for way in ("fwd", "bwd")]
    one = Block(MODELS["sparse"], machine("hw-dgx-h100"), layout_of("tp=2,cp=2,ep=4,dp=1,mbs=5"), SEQUENCE, TRAINING_RECIPES["deepep"])
    kernels = block_kernels(one, 7)
    for way in fields(kernels):
        chain = getattr(kernels, way.name)
        yield way.name, (x for kernel in chain for x in (kernel.name, float(np.max(kernel.us)), kernel.nature.name))
    uneven = [
        MergedKernel("even", 90.0),
        MergedKernel("sent", np.array([3.0, 5.0, 7.0, 11.0]), Nature.COMMUNICATION),
        MergedKernel("late", 47.0, Nature.HOST),
    ]
    programs: list[Program] = [kernels_program(uneven, ways[0], 20.0, 3)]

    def time_us(program: Program) -> float:
        programs.append(program)
        return float(program.n_ops)

    yield "times", astuple(block_times(ways[0], ways[1], kernels, time_us, held=16))
    yield "sms", (*_sms_of(ways[0]), *_sms_of(programs[0], 5))
    for at, program in enumerate(programs):
        for part in fields(program):
            yield f"{at}, {part.name}", (digest_of(getattr(program, part.name))[:8],)


WRONG = (
    "tp=5", "tp=3,cp=2,pp=2", "ep=7,dp=7", "etp=3,dp=3", "vpp=2", "cp=5,dp=2", "tp=4,cp=3,vpp=3,mbs=3", "tp=0", "tp=1,tp=2", "pq=2", "gpus=7,tp=2",
    "gpus=8,dp=2", "gbs=9,dp=2", "gbs=8,m=2", "ep=3,dp=2", "fsdp=3,dp=4", "tp=x", "pp=11,ga=3,gpus=22", "gbs=12,pp=11,ep=2,etp=2",
    "pp=2,stages=Et*6|t*5mmL",
    "pp=2,stages=Et*6|t*5L", "pp=2,stages=Et*6|t*5mL", "pp=3,stages=Et*6|t*5mmL", "pp=2,stages=Et*6|t*4mmL", "pp=2,stages=tE|t*10L", "stages=Ex",
    "stages=(t*99)*9999",
    "pp=11,vpp=1,stages=E(t|)*10tmmL|", "tp=12,dp=2", "ep=24,dp=48,tp=2", "ep=8,dp=8", "ep=4,etp=2,dp=8", "ep=4,etp=2,dp=16", "tp=8,dp=3",
    "ep=12,dp=24",
)  # fmt: skip


def refused() -> Iterator[Row]:
    """Layouts that do not fit a model, a machine or its memory, in words, and those that do."""
    for name, text in itertools.product(("sparse", "windowed", "linear", "dense"), WRONG):
        try:
            layout = layout_of(text)
            chunks = chunks_of(MODELS[name], layout) if layout.stages else ()
            yield f"{name} {text}", (str(astuple(layout)), len(chunks))
            for n in (1, 3, None):
                for check in (partial(check_layout, MODELS[name], layout, 1000 if n else 4096), partial(check_domain, layout, 8, n)):
                    try:
                        check()
                    except ConfigError as error:
                        yield f"{name} {text} {n} {check.func.__name__}", (str(error),)
        except ConfigError as error:
            yield f"{name} {text}", (str(error),)
    model, layout = MODELS["sparse"], layout_of(LAYOUTS["sparse"][2])
    taken = memory.memory_of(model, layout, SEQUENCE, state.recipe_of("bf16"), Saving(), make_schedule("1f1b", 1, 1), {"context": 5e6})
    need = taken.reserved(taken.peak)
    for part in (1.0, 0.99, 0.8, 0.5, 0.3, 0.1, 0.01):
        try:
            memory.check_memory(taken, part * need, "a GPU")
            yield f"{part} of memory", ("fits",)
        except ConfigError as error:
            yield f"{part} of memory", (str(error),)
    for rank, (placement, schedule) in itertools.product((0, 3), {"loop": "1f1b", "v": "zbv", "both": "dualpipe"}.items()):
        pipeline = layout_of(f"pp=5,vpp={2 if placement == 'v' else 1}")
        yield f"{placement} {rank}", ranks_of(schedule, pipeline)[rank]


def cases() -> Cases:
    """Every case by name."""
    found: dict[str, Callable[[], Iterator[Row]]] = {"costs": costs, "settings": settings, "merged": merged, "refused": refused}
    for name, model in MODELS.items():
        found[name] = partial(accounts, model)
        for at, text in enumerate(LAYOUTS[name]):
            found[f"{name} {at}, memory"] = partial(cut, model, text)
            for nth, way in enumerate(TRAINING_RECIPES):
                if way in ("rows", "deepep", "sub-layers", "hybrid-ep") or model.layer:
                    found[f"{name} {at}, {way}"] = partial(block, model, text, way)
                    if nth % 3 == at or way == "rows":
                        found[f"{name} {at}, {way}, step"] = partial(step, model, text, way)
    found |= {f"rates, {way}": partial(rates, way) for way in TRAINING_RECIPES} | {
        f"launches, {way}": partial(training_recipe, way) for way in TRAINING_RECIPES
    }
    return found | {f"orders, {name}": partial(orders, name) for name in all_schedules()}


CASES = cases()
