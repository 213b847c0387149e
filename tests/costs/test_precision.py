"""The dial of precision: names and parts, what each changes, and FP8 beside BF16 over drawn models, machines and layouts."""

import random
from dataclasses import replace

import pytest

from dysharp.api.serving import serve
from dysharp.base.errors import ConfigError
from dysharp.costs.machine import Machine, machine_of
from dysharp.model.formats import COPIES, FORMATS, PRECISIONS, Formats, formats_of, trained
from dysharp.model.layout import layout_of
from dysharp.model.state import RECIPES
from dysharp.runs.precision import in_formats, step_formats
from dysharp.specs import list_whole_models, load_cluster, load_whole
from dysharp.specs.fields import CHECKPOINTS
from dysharp.training.block import Block
from dysharp.training.recipe import TrainingRecipe

DENSE, EXPERTS = load_whole("llama3-8b"), load_whole("deepseek-v3")


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_name_is_a_precision_of_every_part(name: str) -> None:
    found = formats_of(name)
    assert found.state in RECIPES
    assert {found.attention, found.experts, found.dense, found.head} <= set(FORMATS)
    assert found.line(EXPERTS).startswith("formats: weights ")
    assert set(found.to_dict()) == {"weights", "products", "kv", "state", "sent", "back"}


def test_recipes_of_state_are_precisions() -> None:
    assert set(RECIPES) <= set(PRECISIONS)
    assert all(formats_of(name).state == name for name in RECIPES)


def test_parts_behind_a_name_change_these_parts_alone() -> None:
    plain, found = formats_of("fp8"), formats_of("fp8, products=bf16,state=bf16,sent=fp8")
    assert found == replace(plain, products="bf16", state="bf16", sent="fp8")
    assert found.of("attention").compute == "bf16"
    assert found.of("attention").weight_bytes == plain.of("attention").weight_bytes
    assert formats_of("bf16,weights=int4") == Formats("int4", "int4", "int4")
    assert formats_of("bf16,kv=fp8", kv="bf16").kv == "fp8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp9", "precision 'fp9': unknown; did you mean"),
        ("fp8,product=bf16", "unknown part; did you mean 'products'"),
        ("fp8,products=fp9", "precision: products: found 'fp9'"),
        ("fp8,state=nothing", "precision: state: found 'nothing'"),
        ("fp8,sent=rows", "precision: sent: found 'rows'"),
        ("fp8,bf16", "found 'bf16' behind fp8, expected part=value"),
        ("fp8,kv=fp8,kv=bf16", "found kv twice"),
    ],
)
def test_what_is_unknown_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        formats_of(text)
    assert message in str(caught.value).replace('"', "'")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["int4", "fp4", "nvfp4"])
def test_a_name_means_what_checkpoints_of_the_model_hold(name: str) -> None:
    """Models with latent attention quantise experts; the others every linear layer."""
    whole = f"{name.removeprefix('nv')}-all"
    for model in (DENSE, load_whole("glm-4.5-air"), load_whole("qwen3-30b")):
        assert formats_of(name, model=model) == PRECISIONS[whole]
        assert formats_of(f"{name},attention=bf16", model=model).experts == formats_of(whole).experts
    for model in (EXPERTS, load_whole("kimi-k2"), None):
        assert formats_of(name, model=model) == PRECISIONS[name] != PRECISIONS[whole]
    assert formats_of("int4-experts", model=load_whole("glm-4.5-air")) == PRECISIONS["int4"]


def test_a_dense_model_has_what_a_name_says_of_experts_in_every_linear() -> None:
    assert formats_of("mxfp4", model=DENSE).attention == formats_of("mxfp4", model=DENSE).dense == "mxfp4"


def test_the_line_names_parts_where_they_differ() -> None:
    assert formats_of("mxfp4").line(EXPERTS) == "formats: weights mxfp4 (experts), bf16; products bf16; KV bf16; state bf16; rows bf16 out, bf16 back"
    assert formats_of("fp8").line(DENSE) == "formats: weights fp8-block; products fp8; KV bf16; state fp8"
    assert formats_of("fp4").line(load_whole("qwen3-30b")).startswith("formats: weights nvfp4 (experts), bf16;")  # which has no dense FFN
    assert formats_of("fp4").line(DENSE, run=lambda _: "bf16").startswith("formats: weights nvfp4 (dense), bf16; products bf16;")


def test_four_bits_are_widened_to_bf16_where_no_tensor_core_has_fp4() -> None:
    """Engines run NVFP4 weights there by the kernels of INT4 (Marlin), not at the rate of FP8: the same time but for the bytes of scales. CDNA 4
    scales blocks of 32, not NVFP4's of 16 (vLLM PR 35733: emulation on MI355X)."""
    for name, products in (("hw-dgx-h200", "bf16"), ("hw-mi300x", "bf16"), ("hw-pcie-l40s", "bf16"), ("hw-dgx-b200", "fp4"), ("hw-mi355x", "bf16")):
        machine = machine_of(load_cluster(name), "serving")
        assert machine.products("fp4") == products
        assert (machine.products("mxfp8") == "mxfp8") == (name in ("hw-dgx-b200", "hw-mi355x"))  # no tensor core of Hopper or Ada scales blocks
    for name, products in (("hw-mi355x", "fp4"), ("hw-dgx-b200", "fp4"), ("hw-mi300x", "bf16"), ("hw-dgx-h200", "bf16")):  # both sides in MXFP4
        assert serve("gpt-oss-120b", name, gpus=1, precision="mxfp4,products=fp4").formats["products"]["experts"] == products
    fp8, int4, nvfp4 = (serve("qwen3-30b", "hw-dgx-h200", gpus=1, precision=name, kv="bf16").best[0] for name in ("fp8", "int4", "nvfp4"))
    assert nvfp4.tokens_per_gpu == pytest.approx(int4.tokens_per_gpu, rel=0.02)
    assert nvfp4.tokens_per_gpu < fp8.tokens_per_gpu


def test_weights_of_a_step_are_copies_in_the_type_of_their_products() -> None:
    assert trained(formats_of("fp8")).attention == "fp8-block"
    assert trained(formats_of("fp8,products=bf16")).attention == "bf16"
    assert trained(formats_of("bf16,products=fp8")).experts == "fp8"
    with pytest.raises(ConfigError, match="found int4 weights, which no optimizer updates"):
        trained(formats_of("int4"))


def test_every_type_of_products_has_copies_of_its_type() -> None:
    assert {FORMATS[name].compute for name in COPIES.values()} == set(COPIES)


def test_checkpoints_of_packaged_models_are_precisions() -> None:
    for name in {load_whole(name).checkpoint for name in list_whole_models()} - {""}:
        assert formats_of(name).narrow, name
    assert load_whole("gpt-oss-120b").checkpoint == load_whole("gpt-oss-20b").checkpoint == "mxfp4"
    for name in CHECKPOINTS:
        assert name in PRECISIONS


def test_products_follow_the_precision_and_not_the_model() -> None:
    machine = Machine(load_cluster("hw-dgx-b200"))
    for name, gemms, products in (("bf16", "bf16", "bf16"), ("fp8", "fp8", "fp8"), ("mxfp8", "fp8", "mxfp8"), ("fp8,products=bf16", "bf16", "bf16")):
        model, training_recipe = in_formats(EXPERTS, TrainingRecipe(), step_formats(name, EXPERTS), machine)
        assert model.layer is not None
        assert (model.layer.gemm_dtype, training_recipe.products(model)) == (gemms, products)
    for said in (EXPERTS, load_whole("qwen3-30b")):
        assert said.layer is not None
        assert step_formats(None, said) == step_formats(said.layer.gemm_dtype, said)


MODELS = ("llama3-8b", "llama2-7b", "llama3-70b", "qwen3-30b", "deepseek-v2-lite", "gpt-oss-20b", "mixtral-8x7b", "phi-3.5-moe", "deepseek-v3")
CLUSTERS = ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200", "hw-gb200-nvl72", "hw-mi300x", "hw-dgx-h100,gpu=a100-sxm")
LAYOUTS = ("tp=1,ep=8,dp=8", "tp=2,ep=8,dp=4", "tp=8,ep=8", "tp=4,ep=4,dp=2", "tp=1,ep=4,dp=8,mbs=2")
DRAWN = random.Random(51).sample([(m, c, at) for m in MODELS for c in CLUSTERS for at in LAYOUTS], 20)


@pytest.mark.parametrize(("name", "cluster", "text"), DRAWN)
def test_fp8_is_never_slower_than_bf16(name: str, cluster: str, text: str) -> None:
    """Layers of a step, forward and backward with host and casts: a linear that FP8 slows stays in BF16."""
    model, machine = load_whole(name), Machine(load_cluster(cluster))
    layout = layout_of(text if model.layer else text.replace("ep=8,", "").replace("ep=4,", "").replace(",ep=8", ""))
    times = {}
    for precision in ("bf16", "fp8", "fp8,products=fp8"):
        own = TrainingRecipe(host=True, dispatcher="deepep" if model.layer else "")
        whole, training_recipe = in_formats(model, own, step_formats(precision, model), machine)
        block = Block(whole, machine, layout, 4096, training_recipe)
        cost = block.layer(model.n_layers - 1, None)
        times[precision] = cost.forward + cost.backward + cost.weights
    assert times["fp8"] <= times["bf16"]
    assert times["fp8"] <= times["fp8,products=fp8"]


SHAPES = ((1536, 4096), (4096, 1024), (10240, 8192), (57344, 8192), (8192, 28672), (1408, 4096))


@pytest.mark.parametrize("cluster", ["hw-dgx-h100", "hw-dgx-h200", "hw-hgx-h20", "hw-pcie-l40s", "hw-dgx-b200", "hw-hgx-b300", "hw-mi355x"])
def test_few_rows_read_narrow_weights_no_slower(cluster: str) -> None:
    """Up to 16 rows a linear with INT4 weights and BF16 products takes at most what BF16 takes, and before Blackwell, whose registers widen weights
    no faster than memory gives them, what FP8 takes with its cast."""
    machine = machine_of(load_cluster(cluster), "serving")
    for rows in (1, 2, 4, 8, 16):
        for n, k in SHAPES:
            narrow, wide = (machine.gemm(rows, n, k, "bf16", weight_bytes=FORMATS[name].weight_bytes) for name in ("int4", "bf16"))
            fp8 = machine.gemm(rows, n, k, "fp8", weight_bytes=FORMATS["fp8-block"].weight_bytes)
            assert narrow <= wide
            assert narrow <= fp8 + machine.memory(machine.cast_bytes("fp8") * rows * k) or cluster in ("hw-hgx-h20", "hw-dgx-b200", "hw-hgx-b300")


def test_registers_widen_as_fast_beside_slow_tensor_cores() -> None:
    """57344 x 8192 weights on 78 SMs of an H20, 64 in two clocks of 64 lanes (95 us), and eight rows by a quarter of Hopper's tensor rate (51 us)."""
    one = machine_of(load_cluster("hw-hgx-h20"), "serving").gemm(1, 57344, 8192, "bf16", weight_bytes=FORMATS["int4"].weight_bytes)
    clocks = 57344 * 8192 / 78 * (2 / 64 + 2 * 8 / 1024)
    assert clocks / 1980 < one < 1.2 * clocks / 1980 * 1980 / 1853
