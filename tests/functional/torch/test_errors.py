"""One line for every input that does not fit."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.nn")
pytest.importorskip("transformers", minversion="5")

import torch
from dense_machine import DenseMachine
from torch import nn

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.functional.torch import ModuleExperts, extra, make_block, wrap

SIZES: dict[str, Any] = {"hidden": 16, "expert_hidden": 8, "n_experts": 4, "topk": 2}


class Experts(nn.Module):
    """Parts of an experts module, as a test wants them."""

    def __init__(self, gate: bool = True, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.ones(shape)))
        self.act_fn = nn.SiLU()
        if gate:
            self._apply_gate = lambda h: h.chunk(2, -1)[0]

    def forward(self, hidden: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Experts(gate_up_proj=(4, 16, 8)), "Experts: found parameters gate_up_proj, expected gate_up_proj"),
        (Experts(w=(4, 16, 8)), "Experts: found parameters w, expected"),
        (Experts(gate_up_proj=(4, 16, 8), down_proj=(4, 8, 8), down_proj_bias=(4, 8)), "expected .* each with or each without _bias"),
        (Experts(gate=False, gate_up_proj=(4, 16, 8), down_proj=(4, 8, 8)), "Experts: found no _apply_gate"),
        (Experts(gate_up_proj=(4, 16, 8), down_proj=(4, 9, 8)), r"found gate_up_proj \[4, 16, 8\], down_proj \[4, 9, 8\] with is_transposed None"),
        (Experts(gate_up_proj=(4, 16, 8), down_proj=(5, 8, 8)), r"expected both \[experts, ., .\]"),
        (Experts(up_proj=(4, 8, 8), down_proj=(4, 8, 8)), "without is_transposed, expected the attribute: the shapes fit both orientations"),
        (
            Experts(gate_up_proj=(4, 16, 8), down_proj=(4, 8, 8), gate_up_proj_bias=(4, 8), down_proj_bias=(4, 8)),
            r"found gate_up_proj_bias \[4, 8\], expected \[4, 16\]",
        ),
    ],
)
def test_layouts(module: nn.Module, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ModuleExperts(module)


def test_a_layout_against_its_own_attribute() -> None:
    module = Experts(gate_up_proj=(4, 16, 8), down_proj=(4, 8, 8))
    assert not ModuleExperts(module).layout.transposed
    module.is_transposed = True
    with pytest.raises(ConfigError, match="with is_transposed True, expected"):
        ModuleExperts(module)


def test_a_norm_or_parameters_behind_the_experts() -> None:
    module = Experts(gate_up_proj=(4, 16, 8), down_proj=(4, 8, 8))
    module.has_post_expert_norm = True
    with pytest.raises(ConfigError, match="found has_post_expert_norm"):
        ModuleExperts(module)
    module.act_fn = nn.PReLU()
    with pytest.raises(ConfigError, match=r"found parameters act_fn\.weight, down_proj, gate_up_proj, expected"):
        ModuleExperts(module)


def test_a_block_without_experts() -> None:
    with pytest.raises(ConfigError, match="Sequential: found no submodule named experts among 0, 1, expected a MoE block"):
        wrap(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), DenseMachine())


def test_wrap_refuses_at_once() -> None:
    block = make_block("mixtral", **SIZES)
    with pytest.raises(ConfigError, match=r"MixtralSparseMoeBlock\.experts: found experts that are wrapped already"):
        wrap(wrap(block, DenseMachine()), DenseMachine())
    for settings, text in (
        ({"system": "deep-ep"}, "system 'deep-ep': unknown"),
        ({"system": "deepep", "options": {"n_sn": 8}}, 'option deepep.n_sn: unknown; did you mean "n_sm"'),
        ({"order": "randon"}, "order 'randon': unknown"),
        ({"gpus": 0}, "found 0"),
        ({"machine": DenseMachine(), "gpus": 8}, "wrap: found a machine and gpus, expected a machine alone: it has settings of its own"),
    ):
        with pytest.raises(ConfigError, match=text):
            dysharp.wrap(block, **settings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_dtypes_the_machine_has_no_payload_for(dtype: torch.dtype) -> None:
    block = make_block("mixtral", **SIZES)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ConfigError, match=f"MixtralSparseMoeBlock.experts: hidden states: found dtype {name}, expected float32 or bfloat16"):
        wrap(block, DenseMachine()).experts(torch.ones(3, 16, dtype=dtype), torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2))
    block.to(dtype)
    with pytest.raises(ConfigError, match=f"MixtralExperts.gate_up_proj: found dtype {name}"):
        ModuleExperts(block.experts)
    with pytest.raises(ConfigError, match=f"MixtralSparseMoeBlock.experts.gate_up_proj: found dtype {name}, expected float32 or bfloat16"):
        wrap(block, DenseMachine())(torch.ones(1, 3, 16, dtype=dtype))


def test_dtypes_that_do_not_go_together() -> None:
    wrapped = wrap(make_block("mixtral", **SIZES), DenseMachine())
    with pytest.raises(ConfigError, match=r"found hidden states bfloat16, expected float32 as the experts' weights"):
        wrapped.experts(torch.ones(3, 16).bfloat16(), torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2))


def test_devices() -> None:
    # "meta" stands for every device that is not the CPU.
    block = make_block("mixtral", **SIZES)
    with pytest.raises(ConfigError, match="hidden states: found device meta, expected cpu, because the machine computes in NumPy"):
        wrap(block, DenseMachine()).experts(torch.ones(3, 16, device="meta"), torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2))
    with pytest.raises(ConfigError, match="gate_up_proj: found device meta, expected cpu"):
        ModuleExperts(block.to("meta").experts)


def test_other_arguments() -> None:
    experts = wrap(make_block("mixtral", **SIZES), DenseMachine()).experts
    x, index, weight = torch.ones(3, 16), torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
    for args, text in (
        ((x,), "called with other arguments .missing a required argument"),
        ((x, index, None), "found 3 arguments, expected three tensors"),
        ((x, weight, weight), "found expert ids float32, expected integers"),
        ((x, index[:2], weight[:2]), r"found shapes \[3, 16\], \[2, 2\], \[2, 2\], expected \[tokens, hidden\]"),
        ((x, index + torch.tensor([[0, 0], [0, 0], [0, 5]]), weight), "found expert id 5 at token 2, place 1, expected -1 to 3"),
        ((x, index - 2, weight), "found expert id -2 at token 0, place 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            experts(*args)
    by_name = experts(hidden_states=x, top_k_weights=weight, top_k_index=index)
    assert torch.equal(by_name, experts(x, index, weight))


def test_a_machine_that_returns_another_shape() -> None:
    class Odd(DenseMachine):
        def forward(self, *args: Any) -> Any:
            y, saved = super().forward(*args)
            return y[:, :-1], saved

    with pytest.raises(ConfigError, match=r"the machine's output: found float32 \[3, 15\], expected float32 \[3, 16\]"):
        wrap(make_block("mixtral", **SIZES), Odd())(torch.ones(1, 3, 16))


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("qwen-moe", {}, 'block .qwen-moe.: unknown; did you mean "qwen3-moe"'),
        ("mixtral", {"topk": 5}, "block mixtral: found topk 5, expected at most n_experts 4"),
        ("mixtral", {"hidden": 0}, "block mixtral: found hidden 0, expected at least 1"),
        ("mixtral", {"dtype": "float16"}, "block mixtral: found dtype float16, expected float32 or bfloat16"),
        ("deepseek-v3", {"n_experts": 1, "topk": 1}, "block deepseek-v3: found n_experts 1, expected at least 2"),
    ],
)
def test_blocks(name: str, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_block(name, **(SIZES | change))


@pytest.mark.parametrize(("n_experts", "topk"), [(2, 2), (6, 5), (7, 7), (16, 4), (64, 8)])
def test_groups_of_deepseek_hold_enough_experts(n_experts: int, topk: int) -> None:
    block = make_block("deepseek-v3", **(SIZES | {"n_experts": n_experts, "topk": topk}))
    _, _, index = block.gate(torch.randn(20, 16, generator=torch.Generator().manual_seed(0)))
    assert all(len(set(row)) == topk for row in index.tolist())


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"found no {missing}, expected the extra: pip install 'dysharp\[torch\]'"):
        make_block("mixtral", **SIZES)


def test_an_old_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    block = make_block("mixtral", **SIZES)
    monkeypatch.setattr(extra, "version", lambda _: "4.57.6")
    for call in (lambda: make_block("mixtral", **SIZES), lambda: wrap(block, DenseMachine())):
        with pytest.raises(ConfigError, match=r"found transformers 4.57.6, expected 5 or newer: pip install 'dysharp\[torch\]'"):
            call()


def test_readme() -> None:
    page = Path(extra.__file__).with_name("README.md")
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
