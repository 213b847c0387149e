"""Whole models: packaged files, variants, and one line for every file that is wrong."""

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import list_models, list_whole_models, load_model, load_whole
from dysharp.specs.catalog import whole_from_toml

NAMED = """deepseek-v3 deepseek-v2 deepseek-v2-lite moonlight-16b qwen3-30b qwen3-235b gpt-oss-20b gpt-oss-120b mixtral-8x7b mixtral-8x22b
kimi-k2 glm-5 minimax-m2.5 pangu-ultra-moe pangu-pro-moe qwen2-moe phi-3.5-moe llama3-8b llama3-70b llama3-405b"""


def test_models_that_users_name_are_there() -> None:
    assert set(NAMED.split()) <= set(list_whole_models())
    assert "llama3-8b" not in list_models()  # a dense model has no MoE layer to simulate


def test_the_layer_of_a_whole_model_is_the_packaged_layer() -> None:
    for name in set(list_whole_models()) & set(list_models()):
        assert load_whole(name).layer == load_model(name)


def test_a_model_that_names_no_mtp_has_none() -> None:
    assert (load_whole("llama3-8b").mtp, load_whole("deepseek-v3").mtp) == (0, 1)


def test_variants_change_keys_one_by_one() -> None:
    base = load_whole("deepseek-v3")
    small = whole_from_toml('base = "deepseek-v3"\nname = "v3-l4"\nn_layers = 3\n[whole]\ndense_layers = 1\nmtp = 0\n', "f")
    assert (small.n_layers, small.moe_layers, small.vocab, small.attention) == (4, 3, base.vocab, base.attention)
    assert small.source.startswith("variant of deepseek-v3")
    wide = whole_from_toml('base = "llama3-8b"\nname = "l"\n[whole.attention]\nkv_heads = 32\n', "f")
    assert (wide.attention.kv_heads, wide.attention.head_dim, wide.n_layers) == (32, 128, 32)


BAD = {
    'name = "a"': "f: whole: found None, expected a table [whole]",
    'base = "llama3-8b"\nname = "a"\ntopk = 2': "f: topk: found it in a file without n_experts",
    'base = "llama3-8b"\nname = "a"\n[whole]\nvocabulary = 2': "f: [whole]: vocabulary: unknown key",
    'name = "a"\nsource = "x"\nhidden = 8\n[whole]\nvocab = 2\n[whole.attention]\nkind = "gqa"': "f: [whole]: attention.heads: missing",
    'base = "llama3-8b"\nname = "a"\n[whole]\nshared_hidden = 2': "expected no such key in a model without MoE layers",
    'base = "llama3-8b"\nname = "a"\n[whole.attention]\nkv_heads = 5': "kv_heads: found 5, expected a divisor of heads = 32",
    'base = "llama3-8b"\nname = "a"\n[whole.attention]\nkind = "mla"': "kv_rank: missing, expected it for kind 'mla'",
    'base = "deepseek-v3"\nname = "a"\n[whole.attention]\nhead_dim = 8': "head_dim: found 8, expected no such key for kind 'mla'",
    'base = "deepseek-v3"\nname = "a"\n[whole.attention]\nheads = "x"': "attention.heads: found 'x'",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_gets_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        whole_from_toml(text, "f")
    assert BAD[text] in str(error.value)


def test_names_that_are_no_whole_model() -> None:
    with pytest.raises(ConfigError, match="'L-8': found a layer without the table"):
        load_whole("L-8")
    with pytest.raises(ConfigError, match="unknown model 'llama3-7b'"):
        load_whole("llama3-7b")
