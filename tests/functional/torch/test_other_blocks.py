"""Blocks of other models, built of the same parts: none has code of its own here."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("torch.nn")
pytest.importorskip("transformers", minversion="5")

import torch
from dense_machine import DenseMachine, distance, run

from dysharp.base.errors import ConfigError
from dysharp.functional.torch import wrap

SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 24, "num_experts_per_tok": 2, "experts_implementation": "eager"}
FINE = SMALL | {"moe_intermediate_size": 24}
GROUPED = FINE | {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
# folder of transformers.models: (block, config, fields)
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek_v2": ("DeepseekV2Moe", "DeepseekV2Config", GROUPED | {"topk_method": "group_limited_greedy"}),
    "dots1": ("Dots1MoE", "Dots1Config", GROUPED),
    "ernie4_5_moe": ("Ernie4_5_MoeSparseMoeBlock", "Ernie4_5_MoeConfig", FINE | {"moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 1}),
    "flex_olmo": ("FlexOlmoSparseMoeBlock", "FlexOlmoConfig", SMALL | {"num_experts": 8}),
    "glm4_moe": ("Glm4MoeMoE", "Glm4MoeConfig", GROUPED),
    "granitemoe": ("GraniteMoeMoE", "GraniteMoeConfig", SMALL | {"num_local_experts": 8}),
    "minimax": ("MiniMaxSparseMoeBlock", "MiniMaxConfig", SMALL | {"num_local_experts": 8}),
    "minimax_m2": ("MiniMaxM2SparseMoeBlock", "MiniMaxM2Config", SMALL | {"num_local_experts": 8}),
    "nemotron_h": ("NemotronHMoE", "NemotronHConfig", GROUPED | {"moe_shared_expert_intermediate_size": 24, "moe_latent_size": 16}),
    "olmoe": ("OlmoeSparseMoeBlock", "OlmoeConfig", SMALL | {"num_experts": 8}),
    "openai_privacy_filter": ("OpenAIPrivacyFilterMLP", "OpenAIPrivacyFilterConfig", SMALL | {"num_local_experts": 8}),
    "phimoe": ("PhimoeSparseMoeBlock", "PhimoeConfig", SMALL | {"num_local_experts": 8}),
    "qwen2_moe": ("Qwen2MoeSparseMoeBlock", "Qwen2MoeConfig", FINE | {"num_experts": 8, "shared_expert_intermediate_size": 24}),
}


def build(folder: str, block: str, config: str, fields: dict[str, Any]) -> torch.nn.Module:
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    configs = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    made: torch.nn.Module = getattr(module, block)(getattr(configs, config)(**fields))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    return made.eval()


@pytest.mark.parametrize("folder", OTHERS)
def test_runs_without_code_of_its_own(folder: str) -> None:
    block = build(folder, *OTHERS[folder])
    generator = torch.Generator().manual_seed(1)
    x, dy = (torch.randn((2, 11, 32), generator=generator) for _ in range(2))
    expected, found = run(block, x, dy), run(wrap(block, DenseMachine()), x, dy)
    assert {"y", "x"} < set(expected) == set(found)
    assert any("experts" in n for n in found)
    assert {n: d for n in expected if (d := distance(found[n], expected[n])) > 1e-5} == {}


@pytest.mark.parametrize(
    ("folder", "block", "config", "fields", "text"),
    [
        (
            "llama4",
            "Llama4TextMoe",
            "Llama4TextConfig",
            {"num_local_experts": 4},
            r"experts called with \(hidden_states.*expected \(hidden states, expert ids",
        ),
        (
            "longcat_flash",
            "LongcatFlashMoE",
            "LongcatFlashConfig",
            {"n_routed_experts": 4, "zero_expert_num": 2},
            "LongcatFlashExperts: found no _apply_gate, expected",
        ),
    ],
)
def test_blocks_of_other_parts_are_refused(folder: str, block: str, config: str, fields: dict[str, Any], text: str) -> None:
    made = build(folder, block, config, {"hidden_size": 32, "intermediate_size": 24} | fields)
    with pytest.raises(ConfigError, match=text):
        wrap(made, DenseMachine())
