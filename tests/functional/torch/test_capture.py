"""Captured routing against the routers' own outputs, on whole tiny models with random weights."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.nn")
pytest.importorskip("transformers", minversion="5")

import torch
from numpy.typing import NDArray

import dysharp as ds
from dysharp.base.errors import ConfigError
from dysharp.functional.torch import capture
from dysharp.functional.torch.pretrained import load_pretrained, load_tokenizer, token_ids
from dysharp.workload import Recording, load_trace, save_trace

torch.set_num_threads(1)

COMMON = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "max_position_embeddings": 64}
# folder: (prefix of its classes, fields, numbers of the MoE layers, experts)
MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], int]] = {
    "mixtral": ("Mixtral", {"intermediate_size": 24, "num_local_experts": 8, "num_experts_per_tok": 2}, (0, 1, 2), 8),
    "qwen3_moe": (
        "Qwen3Moe",
        {"intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 12, "num_experts_per_tok": 3, "mlp_only_layers": [1]},
        (0, 2),
        12,
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {"intermediate_size": 48, "moe_intermediate_size": 16, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
         "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
         "num_key_value_heads": 4},
        (1, 2),
        16,
    ),
    "gpt_oss": ("GptOss", {"intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16}, (0, 1, 2), 8),
}  # fmt: skip


def build(folder: str, **changes: Any) -> Any:
    prefix, fields, _, _ = MODELS[folder]
    config_of = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    model_of = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    config = getattr(config_of, f"{prefix}Config")(**(COMMON | ENDS | fields | changes))
    torch.manual_seed(3)
    model = getattr(model_of, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if "gate.weight" in name or "router" in name or "correction_bias" in name:
                value.normal_(0.0, 0.5)
    return model


def routers_of(model: Any) -> dict[str, Any]:
    return {n: m for n, m in model.named_modules() if type(m).__name__.endswith(("TopKRouter", "TopkRouter"))}


def own_choices(model: Any, ids: NDArray[Any], length: int) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """What every router returned, window by window: another place and another batching than the capture's."""
    out: dict[str, list[Any]] = {name: [] for name in routers_of(model)}
    hooks = [m.register_forward_hook(lambda _m, _a, result, n=n: out[n].append(result)) for n, m in routers_of(model).items()]
    model.eval()
    with torch.no_grad():
        for start in range(0, len(ids), length):
            model(torch.from_numpy(ids[None, start : start + length]))
    for hook in hooks:
        hook.remove()
    found = {}
    for name, results in out.items():
        integers = [next(t for t in result if not t.is_floating_point()) for result in results]
        weights = [next(t for t in result if t.is_floating_point() and t.shape == i.shape) for result, i in zip(results, integers, strict=True)]
        found[name] = (torch.cat(integers).numpy(), torch.cat(weights).float().numpy())
    return found


@pytest.mark.parametrize("folder", MODELS)
def test_the_routers_own_counts_exactly(folder: str) -> None:
    model = build(folder)
    ids = np.random.default_rng(0).integers(0, 256, 24 * 5 + 7)
    trace = capture(model, ids, sequence=24, batch=1)
    _, _, layers, n_experts = MODELS[folder]
    assert (trace.layers, trace.n_experts, trace.n_tokens) == (layers, n_experts, len(ids))
    assert trace.seq_len is not None
    assert trace.weight is not None
    assert trace.seq_len.tolist() == [24] * 5 + [7]
    own = own_choices(model, ids, 24)
    assert len(own) == len(layers)
    for row, (experts, weights) in enumerate(own.values()):
        np.testing.assert_array_equal(trace.expert[row], experts)
        np.testing.assert_array_equal(trace.weight[row], weights)
        counts = np.bincount(experts.ravel(), minlength=n_experts)
        np.testing.assert_array_equal(np.bincount(trace.expert[row].ravel(), minlength=n_experts), counts)
        assert counts.sum() == len(ids) * trace.topk


@pytest.mark.parametrize("folder", ["mixtral", "qwen3_moe"])
def test_against_the_router_logits_of_the_model(folder: str) -> None:
    """Another way altogether: transformers' own output, and the choice recomputed from it."""
    model = build(folder)
    ids = np.random.default_rng(1).integers(0, 256, 40)
    trace = capture(model, ids, sequence=40)
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(ids[None]), output_router_logits=True).router_logits
    assert len(logits) == len(trace.layers)
    for row, layer in enumerate(logits):
        best = torch.topk(layer, trace.topk, dim=-1).indices.numpy()
        np.testing.assert_array_equal(np.sort(trace.expert[row], axis=1), np.sort(best, axis=1))


def test_batches_give_the_same_choices() -> None:
    model = build("mixtral")
    ids = np.random.default_rng(2).integers(0, 256, 100)
    one, four = capture(model, ids, sequence=16, batch=1), capture(model, ids, sequence=16, batch=4)
    np.testing.assert_array_equal(one.expert, four.expert)


def test_the_model_is_left_as_it_was() -> None:
    model = build("mixtral").train()
    model.lm_head.eval()
    seen: list[tuple[int, int]] = []
    capture(model, list(b"some text, long enough"), sequence=8, batch=1, layers=[1], progress=lambda done, total: seen.append((done, total)))
    assert model.training
    assert not model.lm_head.training
    assert seen == [(8, 22), (16, 22), (22, 22)]
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_written_and_read_back(tmp_path: Path) -> None:
    trace = capture(build("deepseek_v3"), list(range(50)), sequence=20, name="tiny")
    found = load_trace(str(save_trace(trace, tmp_path / "tiny.npz")))
    assert (found.layers, found.n_experts, found.synthetic, found.origin) == (trace.layers, 16, False, "captured from the model's own routers")
    np.testing.assert_array_equal(found.expert, trace.expert)
    np.testing.assert_array_equal(found.weight, trace.weight)
    np.testing.assert_array_equal(found.seq_len, trace.seq_len)
    save_trace(trace, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "tiny.npz").read_bytes()


def test_layers_and_errors() -> None:
    model = build("deepseek_v3")
    assert capture(model, [1, 2, 3], layers=[2]).layers == (2,)
    for text, call in [
        (r"layer 0 has no experts, expected some of 1, 2", lambda: capture(model, [1], layers=[0])),
        (r"token 1: found id 256, expected 0 to 255", lambda: capture(model, [1, 256])),
        (r"found token ids .* of shape \(0,\), expected integers", lambda: capture(model, [])),
        (r"found sequence 65, expected at most the model's 64", lambda: capture(model, [1], sequence=65)),
        (r"found sequence 0, expected at least 1", lambda: capture(model, [1], sequence=0)),
        (r"Linear: found no module named experts among Linear", lambda: capture(torch.nn.Linear(2, 2), [1])),
    ]:
        with pytest.raises(ConfigError, match=text):
            call()


def test_a_model_that_does_not_run() -> None:
    model = build("mixtral")
    model.model.layers[1].self_attn.q_proj = torch.nn.Linear(3, 3)
    with pytest.raises(ConfigError, match="MixtralForCausalLM: the model does not run on tokens alone: RuntimeError: mat1"):
        capture(model, [1, 2, 3])
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_experts_called_with_other_arguments() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.experts = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4)
            self.experts.num_experts = 3

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embed

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.experts(self.embed(input_ids))
            return out

    block = Block()
    with pytest.raises(ConfigError, match=r"experts: found experts called with float32 \[1, 2, 4\], expected hidden states, expert ids"):
        capture(block, [1, 2])
    assert not block.experts._forward_pre_hooks


def saved(tmp_path: Path, folder: str = "mixtral", **changes: Any) -> Path:
    model = build(folder, **changes)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_from_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    text = "Zwölf Bytes und mehr. " * 10
    steps: list[Any] = []
    trace = ds.capture(folder, text, max_tokens=150, progress=steps.append)
    same = capture(build("mixtral"), list(text.encode()[:150]))
    np.testing.assert_array_equal(trace.expert, same.expert)
    assert trace.name == "model (mixtral)"
    assert trace.origin == "captured from the model's own routers, text fed as bytes"
    assert [(s.stage, s.done) for s in steps] == [("loading model", 0), ("capture", 128), ("capture", 150)]
    assert ds.capture(folder, text, layers=[2]).layers == (2,)


def test_the_folders_own_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = saved(tmp_path)
    words = {"a": 0, "b": 1, "c": 2, "?": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}))
    loaded = load_tokenizer(folder)
    assert token_ids("a b c d " * 20, loaded, 6, 256).tolist() == [0, 1, 2, 3, 0, 1]
    trace: Recording = ds.capture(folder, "a b c d")
    assert trace.n_tokens == 4
    assert "bytes" not in trace.origin


def test_folders_that_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    config = json.loads((folder / "config.json").read_text())

    def refused(text: str, **changes: Any) -> None:
        (folder / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ConfigError, match=text):
            load_pretrained(folder)

    refused("is no MoE|found no module named experts", model_type="llama", architectures=["LlamaForCausalLM"])
    refused("transformers cannot load it", model_type="no-such-model")
    refused("transformers cannot load it", hidden_size=64)
    refused("weights are missing, the first is", num_hidden_layers=4)
    refused(r"config.json describes \d+ parameters, the safetensors have \d+ bytes", hidden_size=1 << 20)
    remote = folder / "modeling_evil.py"
    remote.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    refused("transformers cannot load it", model_type="evil", auto_map={"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"})
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match="no such folder"):
        load_pretrained(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_pretrained(tmp_path / "empty")


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(ran), "w"))

    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save({"x": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no \*\.safetensors but pytorch_model\.bin, expected weights as safetensors"):
        load_pretrained(folder)
    assert not ran.exists()


def test_text_to_ids() -> None:
    assert token_ids("äb", None, 2, 256).tolist() == list("ä".encode())
    with pytest.raises(ConfigError, match="no tokenizer, and 100 tokens in the model, expected at least 256"):
        token_ids("a", None, 2, 100)
    with pytest.raises(ConfigError, match="found an empty text"):
        token_ids("", None, 2, 256)
    with pytest.raises(ConfigError, match="found max_tokens 0"):
        token_ids("a", None, 0, 256)


def test_a_model_of_transformers_needs_their_fifth_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ConfigError("no transformers")

    monkeypatch.setattr("dysharp.functional.torch.routers.require_transformers", missing)
    for module, words in (("transformers.models.x", "no transformers"), ("mine", "")):
        own = type("Own", (torch.nn.Linear,), {"__module__": module})
        with pytest.raises(ConfigError) as caught:
            capture(own(2, 2), [1, 2])
        assert (str(caught.value) == "no transformers") == bool(words)
