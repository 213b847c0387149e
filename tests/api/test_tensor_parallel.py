"""Systems of sub-layers inside steps and serving: what takes the place of collectives, and what is refused."""

from __future__ import annotations

import pytest

import dysharp
from dysharp.api.tensor_parallel import _check_tensor_system, _ends, serving_curves, step_sub_layers, step_words
from dysharp.base.errors import ConfigError
from dysharp.costs.machine import Machine, machine_of
from dysharp.model import layout_of
from dysharp.model.formats import formats_of
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica, SubLayerCurve
from dysharp.specs import load_cluster, load_whole
from dysharp.training.block import Block
from dysharp.training.recipe import SubLayers, TrainingRecipe

CLUSTER = "paper-cais-h100"


def test_columns_of_both_exchanges_are_those_of_the_layer() -> None:
    """LLaMA 2 7B: 32 heads of 128, a gated FFN of 11008."""
    one, two = _ends(load_whole("llama2-7b"), 1, serving=False)
    assert (one, two) == (((4096,) * 2, (2 * 11008,) * 2), ((11008,) * 2, (3 * 4096,) * 2))


def test_columns_of_latent_attention_are_whole_and_those_of_experts_are_the_active_ones() -> None:
    """DeepSeek-V3: 128 heads with values of 128, ranks 1536 and 512, positions of 64; 8 of its experts and a shared one of 2048 each."""
    model = load_whole("deepseek-v3")
    (out, first), (last, queries) = _ends(model, 4, serving=True)
    assert (out[0], first[0], last[0]) == (128 * 128 / 4, 2 * 9 * 2048 / 4, 9 * 2048 / 4)
    assert queries == (2112, 2112)
    (_, first), (_, queries) = _ends(model, 4, serving=False)
    assert (first[0], queries) == (2 * 2048 / 4, (2112, 2112 / 4))
    assert _ends(load_whole("mixtral-8x7b"), 2, serving=False)[0][1] == (3072, 3072)  # no shared expert: 32 + 2 x 8 heads of 128 behind the sum


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "mixtral-8x7b"])
def test_a_system_has_rows_for_models_with_experts_and_with_latent_attention(name: str) -> None:
    model, cluster = load_whole(name), load_cluster(CLUSTER)
    rows = step_sub_layers("sp-nvls", model, cluster, 2, 256)
    assert min(*rows.forward, *rows.backward) > 0
    assert "apart in time" in step_words("cais", model)
    assert "apart" not in step_words("cais", load_whole("llama2-7b"))


@pytest.mark.parametrize(("name", "apart"), [("deepseek-v2-lite", (1, 2)), ("mixtral-8x7b", (0, 1, 2, 3))])
def test_around_routed_experts_the_sum_has_ended_before_the_gather_begins(name: str, apart: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared experts stand directly behind the exchange of attention, and before the next input projection there are the routed ones."""
    model, cluster = load_whole(name), load_cluster(CLUSTER)

    def rows(system: str) -> tuple[float, ...]:
        found = step_sub_layers(system, model, cluster, 2, 1024)
        return *found.forward, *found.backward

    parted, serial = rows("cais"), rows("sp-nvls")
    monkeypatch.setattr("dysharp.api.tensor_parallel.SERIAL", {})
    together = rows("cais")
    assert tuple(i for i in range(4) if parted[i] > together[i]) == apart
    assert all(parted[i] == together[i] for i in range(4) if i not in apart)
    assert rows("sp-nvls") == serial


def test_a_layer_takes_the_rows_in_place_of_its_collectives() -> None:
    model, layout = load_whole("llama2-7b"), layout_of("tp=4,dp=1,m=1")
    machine = Machine(load_cluster(CLUSTER))
    plain, given = (
        Block(model, machine, layout, 2048, p).layer(0, None) for p in (TrainingRecipe(), TrainingRecipe(tensor=SubLayers("x", (10, 20), (30, 40))))
    )
    assert given.parts["tensor parallel"] == 100
    ways = plain.parts["tensor parallel"]
    assert given.forward + given.backward == pytest.approx(plain.forward + plain.backward - ways + 100)
    assert plain.parts.keys() == given.parts.keys()


def test_times_of_a_step_are_those_of_its_rows() -> None:
    """Merging hides what an all-reduce between barriers shows; a step is shorter by as much."""
    model, cluster = load_whole("llama2-7b"), load_cluster(CLUSTER)
    cais, tp = (step_sub_layers(name, model, cluster, 4, 1024) for name in ("cais", "tp-nvls"))
    assert all(0 < a < b for a, b in zip((*cais.forward, *cais.backward), (*tp.forward, *tp.backward), strict=True))
    steps = {name: dysharp.step("llama2-7b", CLUSTER, "tp=4,dp=1,m=1", sequence=1024, tensor=name).best for name in ("cais", "tp-nvls")}
    layers = 32 * (sum(tp.forward + tp.backward) - sum(cais.forward + cais.backward))
    assert steps["tp-nvls"].step_us - steps["cais"].step_us == pytest.approx(layers, rel=1e-3)


def test_prompts_take_the_curve_and_decoding_the_kernels_of_the_engine() -> None:
    model, asked = load_whole("llama3-8b"), []

    def curve(tp: int) -> SubLayerCurve:
        asked.append(tp)
        return SubLayerCurve((1024, 4096), (10.0, 40.0), (20.0, 80.0))

    own = Replica(model, formats_of("bf16", "bf16"), ServeLayout(tp=4), machine_of(load_cluster("hw-dgx-h100"), "serving"))
    other = Replica(model, own.formats, own.layout, own.machine, "", curve)
    assert [other.all_reduce(name, 2560).us for name in ("attention all-reduce", "FFN all-reduce")] == [25.0, 50.0]
    assert other.all_reduce("FFN all-reduce", 8192).us == 160.0
    for name, tokens in (("embedding", 4096), ("attention all-reduce", 64)):
        assert other.all_reduce(name, tokens) == own.all_reduce(name, tokens)
    assert set(asked) == {4}


def test_a_curve_of_serving_has_a_row_for_each_size() -> None:
    curve = serving_curves("tp-nvls", load_whole("llama3-8b"), load_cluster("hw-dgx-h100"))(8)
    assert curve.tokens == (1024, 4096, 16384)
    assert 0 < curve.attention[0] < curve.attention[1] < curve.attention[2]


@pytest.mark.parametrize(
    ("system", "model", "tp", "found"),
    [
        ("cias", "llama2-7b", 4, "found 'cias'.*cais"),
        ("cais", "qwen3-next-80b", 4, "with linear attention, expected attention of heads"),
        ("cais", "llama2-7b", 1, "found tp=1"),
    ],
)
def test_what_sub_layers_do_not_describe_is_refused(system: str, model: str, tp: int, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        _check_tensor_system(system, load_whole(model), tp)
