"""Memory of pipeline ranks: parts of published tables, counts in flight, recomputation, refusals."""

import pytest

from dysharp.base.errors import ConfigError
from dysharp.base.units import GiB
from dysharp.model import Chunk, Layout, layout_of
from dysharp.model.state import RECIPES, rank_parameters, state_bytes
from dysharp.planning.cost import Coster, machine_of
from dysharp.planning.space import Space, Task
from dysharp.specs import WholeModel, load_cluster, load_whole
from dysharp.specs.catalog import whole_from_toml
from dysharp.training.memory import (
    LINES,
    MODULES,
    RESERVED,
    DoesNotFit,
    Saving,
    TrainingMemory,
    _RankMemory,
    check_memory,
    is_dropped,
    memory_of,
    saved_of_layer,
)
from dysharp.training.schedules import make_schedule


def _small_v3() -> WholeModel:
    return whole_from_toml('base = "deepseek-v3"\nname = "v3-l4"\nn_layers = 3\n[whole]\ndense_layers = 1\nmtp = 0\n', "test")


def _llama(layers: int = 12) -> WholeModel:
    return whole_from_toml(f'base = "llama3-70b"\nname = "llama-short"\n[whole]\ndense_layers = {layers}\n', "test")


def _memory(model: WholeModel, text: str, schedule: str = "1f1b", m: int = 8, saving: Saving | None = None, recipe: str = "bf16") -> TrainingMemory:
    layout = layout_of(text)
    order = make_schedule(schedule, layout.pp, m, layout.vpp)
    return memory_of(model, layout, 4096, RECIPES[recipe], saving or Saving(), order)


# parts of measured peaks as the closed form gives them: state, activations, dummy gradients, backward pass, in GiB (specification, check A)
PARTS = {
    "pp=2,dp=4": (_llama(), (51.84, 12.57, 1.59, 0.56)),
    "tp=8": (_llama(), (25.92, 1.57, 0.44, 0.26)),
    "ep=8": (_small_v3(), (92.78, 6.54, 2.89, 1.21)),
    "ep=4,pp=2": (_small_v3(), (106.17, 3.50, 2.16, 1.21)),
}


@pytest.mark.parametrize("text", PARTS)
def test_parts_of_the_closed_form(text: str) -> None:
    model, expected = PARTS[text]
    lines = _memory(model, text).peak.lines
    state = sum(lines[name] for name in ("weights", "gradients", "optimizer"))
    found = [n / GiB for n in (state, lines["activations"], lines["dummy gradients"], lines["backward pass"])]
    assert found == pytest.approx(expected, abs=0.031)  # the vocabulary is padded here (TP 8)


def test_nvidias_table_of_deepseek_v3() -> None:
    """256 GPUs, TP 1, PP 4, VPP 4, EP 64: 16 MoE layers per rank, 60 layers in flight."""
    model, layout = load_whole("deepseek-v3"), layout_of("pp=4,vpp=4,ep=64")
    held = rank_parameters(model, layout, [Chunk(10, 16)])
    state = {line: n / GiB for line, n in state_bytes(held, held, layout, RECIPES["bf16"]).items()}
    assert state["weights"] + state["gradients"] == pytest.approx(36.4, rel=0.01)
    assert state["optimizer"] == pytest.approx(32.1, rel=0.01)
    tensors = saved_of_layer(model, layout, kind="*E", saving=Saving(fc2_output=True))
    gib = {one.op: 60 * 4096 * one.bytes / GiB for one in tensors}
    assert sum(gib.values()) == pytest.approx(131.0, rel=0.01)
    assert gib["expert FC2 output"] == pytest.approx(26.3, rel=0.01)
    assert gib["q, k, v"] == pytest.approx(30.4, rel=0.02)
    norms = sum(60 * 4096 * one.bytes / GiB for one in tensors if one.module == "layernorm")
    assert norms * 2.5 / 2 == pytest.approx(8.2, rel=0.01)  # two BF16 vectors here, 2.5 in the table


def test_saved_bytes_of_a_token() -> None:
    model = load_whole("deepseek-v3")
    tensors = saved_of_layer(model, Layout(), kind="*E", saving=Saving())
    assert sum(one.bytes for one in tensors) == 458_368


IN_FLIGHT = {"1f1b": (1, [4, 3, 2, 1]), "interleaved": (2, [11, 9, 7, 5]), "gpipe": (1, [8, 8, 8, 8])}


@pytest.mark.parametrize("name", IN_FLIGHT)
def test_chunks_in_flight_come_from_the_order(name: str) -> None:
    vpp, expected = IN_FLIGHT[name]
    memory = _memory(_llama(8), f"pp=4,vpp={vpp}", name)
    assert [sum(rank.held.values()) for rank in memory.ranks] == expected


def test_peaks_of_one_chunk_and_state_are_below() -> None:
    memory = _memory(_llama(8), "pp=4")
    one = _memory(_llama(8), "pp=4", m=1)
    for rank, alone in zip(memory.ranks, one.ranks, strict=True):
        assert rank.allocated >= alone.allocated > sum(rank.lines[line] for line in ("weights", "gradients", "optimizer"))
        assert sum(rank.ops.values()) == pytest.approx(rank.lines["activations"])
        assert set(rank.lines) == set(LINES)


@pytest.mark.parametrize("module", [*MODULES, "full"])
def test_recomputation_never_raises_what_is_held(module: str) -> None:
    plain, less = (_memory(_small_v3(), "pp=3,ep=8", saving=Saving(recompute=which)) for which in ((), (module,)))
    assert less.peak.lines["activations"] <= plain.peak.lines["activations"]
    assert less.peak.allocated <= plain.peak.allocated
    assert any(rank.lines["recomputed layer"] > 0 for rank in less.ranks) == (module != "core_attn")


def test_what_moe_drops_contains_its_parts() -> None:
    tensors = saved_of_layer(load_whole("deepseek-v3"), Layout(), kind="*E", saving=Saving())
    dropped = {m: sum(one.bytes for one in tensors if is_dropped(one, Saving(recompute=(m,)))) for m in (*MODULES, "full")}
    assert dropped["mla_up_proj"] == 2 * 128 * (2 * 192 + 128)
    assert dropped["layernorm"] == 2 * 2 * 7168
    assert dropped["moe_act"] == 2 * 8 * 2048
    assert dropped["shared_experts"] == 6 * 2048
    assert dropped["moe"] > dropped["moe_act"] + dropped["shared_experts"]
    assert dropped["full"] == 458_368 - 2 * 7168


def test_more_replicas_take_less_state_and_two_directions_take_twice_the_weights() -> None:
    few, many = _memory(_llama(8), "dp=2"), _memory(_llama(8), "dp=8")
    assert many.peak.lines["optimizer"] == few.peak.lines["optimizer"] / 4
    single, double = _memory(_llama(8), "pp=4"), _memory(_llama(8), "pp=4", "dualpipe", m=16)
    assert double.ranks[1].parameters == pytest.approx(2 * single.ranks[1].parameters)


def test_precision_changes_state_as_its_recipe_says() -> None:
    bytes_of = {name: _memory(_small_v3(), "ep=8", recipe=name).peak.allocated for name in RECIPES}
    assert bytes_of["bf16-gradients"] < bytes_of["bf16-moments"] < bytes_of["bf16"] < bytes_of["bf16-whole"]
    assert bytes_of["fp8"] > bytes_of["bf16"]


def test_a_layout_that_does_not_fit_is_refused_with_the_line_that_breaks_it() -> None:
    memory = _memory(load_whole("deepseek-v3"), "pp=1,ep=64")
    found = r"memory: found \d+\.\d GiB on pipeline rank 0, expected at most 67\.1 of the 74\.5 GiB of h100-sxm; gradients"
    with pytest.raises(ConfigError, match=found):
        check_memory(memory, 80e9, "h100-sxm")
    held = _memory(_llama(16), "tp=2,pp=4,dp=8", "gpipe", m=64)
    with pytest.raises(ConfigError, match=r"activations of 64 chunks in flight \(\d+\.\d GiB\) come on top of"):
        check_memory(held, 80e9, "h100-sxm")
    check_memory(held, 1e15, "h100-sxm")


def test_a_schedule_of_another_shape_is_refused() -> None:
    model, layout = _llama(8), layout_of("pp=4,vpp=2")
    with pytest.raises(ConfigError, match=r"found a schedule of 4 ranks and 4 stages, expected 4 ranks and 8 chunks \(pp x vpp\)"):
        memory_of(model, layout, 4096, RECIPES["bf16"], Saving(), make_schedule("1f1b", 4, 8))
    with pytest.raises(ConfigError, match="recompute: found 'attn', expected modules"):
        Saving(recompute=("attn",))


def test_chunks_that_wait_for_weight_gradients_are_told_apart() -> None:
    """DualPipe with whole layers recomputed: at the peak of a middle rank every chunk has had its backward pass, and W is due."""
    model, layout = load_whole("deepseek-v3"), layout_of("pp=16,ep=32,m=64,stages=Et*4|(t*4|)*13t*3|t*2mL")
    order = make_schedule("dualpipe", 16, 64)
    peak, whole = (memory_of(model, layout, 4096, RECIPES["bf16"], Saving(one), order).peak for one in (("full",), ()))
    assert peak.waiting
    assert peak.in_flight == f"{peak.waiting} chunks in flight that wait for weight gradients"  # none is before its backward pass
    assert sum(whole.held.values()) > 8
    assert peak.allocated < whole.allocated


def test_sharded_weights_leave_a_part_and_the_layers_that_are_gathered() -> None:
    model = _llama()
    whole, shared = (_memory(model, text).peak for text in ("dp=8", "dp=8,fsdp=8"))
    layer = rank_parameters(model, Layout(), [Chunk(0, 1)]).dense
    assert shared.lines["weights"] == pytest.approx(whole.lines["weights"] / 8 + 2 * 2 * layer)
    assert shared.lines["gradients"] == pytest.approx(whole.lines["gradients"] / 8 + 4 * layer)
    assert shared.lines["optimizer"] == whole.lines["optimizer"]


def test_plan_and_step_have_one_cap() -> None:
    """The layout that a plan judges too large is refused by `step`, between 90 and 100 % of the memory, too."""
    cluster = load_cluster("hw-dgx-h100-x8")
    rank = _RankMemory(0, {"weights": 0.95 * cluster.hbm_bytes / RESERVED}, {}, {}, 0.0, (0,))
    with pytest.raises(DoesNotFit, match=r"found 75\.7 GiB on pipeline rank 0, expected at most 71\.7 of the 79\.6 GiB"):
        check_memory(TrainingMemory("m", (rank,)), cluster.hbm_bytes, "a GPU")
    task = Task(load_whole("qwen3-30b"), 64, 64)
    assert Coster(task, machine_of(cluster), Space()).capacity == TrainingMemory("m", (rank,)).limit(cluster.hbm_bytes)
    named = TrainingMemory("m", (rank,), {"buffers": 0.05 * cluster.hbm_bytes})
    assert named.limit(cluster.hbm_bytes) == pytest.approx(0.95 * cluster.hbm_bytes)


V3_LAYOUT = "pp=16,ep=64,gpus=2048,gbs=15360,stages=Et*3|(t*4|)*14t*2mL"


@pytest.mark.parametrize(("recipe", "fits"), [("fp8-deepseek", True), ("fp8-moments", False)])
def test_deepseeks_layout_fits_with_what_deepseek_keeps(recipe: str, fits: bool) -> None:
    """PP16, EP64 and DualPipe ran on 2,048 H800 of 80 GB with the storage of its report, section 3.3.3; Megatron's FP8 keeps more."""
    saving = Saving(("mla_up_proj", "layernorm", "moe_act"))
    memory = _memory(load_whole("deepseek-v3"), V3_LAYOUT, "dualpipe", 120, saving, recipe)
    hbm = load_cluster("hw-dgx-h800-x8").hbm_bytes
    assert (memory.reserved(memory.peak) <= memory.limit(hbm)) == fits


def test_fp8_copies_are_those_of_linears_and_stages_held_twice_share_an_optimizer() -> None:
    """Embedding and head have no copies; both ranks of a stage are replicas of it, in bytes as in time."""
    model = load_whole("deepseek-v3")
    plain, copied = (_memory(model, "ep=64", recipe=name).peak for name in ("bf16", "fp8"))
    table = 2 * 129_280 * 7168
    assert copied.lines["weights"] <= 2 * plain.lines["weights"] - 2 * table
    one, both = (_memory(_llama(8), "pp=4,dp=2", name, m=16) for name in ("1f1b", "dualpipe"))
    assert both.ranks[1].lines["optimizer"] == pytest.approx(one.ranks[1].lines["optimizer"])
