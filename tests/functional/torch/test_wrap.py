"""Wrapped blocks against the blocks' own forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

# `torch.nn`, not `torch`: this folder's own name must not pass for the package.
pytest.importorskip("torch.nn")
pytest.importorskip("transformers", minversion="5")

import ml_dtypes
import torch
from dense_machine import DenseMachine, distance, output, run

from dysharp.functional.torch import BLOCKS, ModuleExperts, make_block, wrap
from dysharp.functional.torch.arrays import to_array, to_tensor

U = 2.0**-8  # half a unit in the last place of bfloat16, relative
SIZES: dict[str, Any] = {"hidden": 48, "expert_hidden": 40, "n_experts": 8, "topk": 3}


def tensors(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, dy = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return x, dy


@pytest.mark.parametrize("name", BLOCKS)
def test_float32_forward_and_backward(name: str) -> None:
    block = make_block(name, **SIZES, seed=1)
    x, dy = tensors((2, 20, 48), torch.float32)
    expected, found = run(block, x, dy), run(wrap(block, DenseMachine()), x, dy)
    assert set(found) == set(expected) == {"y", "x"} | {n for n, _ in block.named_parameters()}
    assert {n: d for n in expected if (d := distance(found[n], expected[n])) > 1e-5} == {}


def bound_bf16(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Per element, how far the machine's output may lie from the block's own `eager` one in bfloat16: `[tokens, hidden]`.

    Both get the same ids and gate weights, so they differ by where they round; every rounding moves a value v by at most u |v|, u = 2^-8.

    1. GEMM-1 (h): both round h once: 2u |h|; with a bias the block also rounds the product before it: u |h - b1|.
    2. Activation (a): what h brings, |da/dh| E_h, plus the machine's one rounding and the block's own: SwiGLU rounds silu and the product
       (3u |a| together); gpt-oss rounds sigmoid, its product, up + 1 and the last product (5u |a|), and alpha * gate inside the sigmoid,
       which moves it by at most max |z s'(z)| u < 0.2239u.
    3. GEMM-2 (y): what a brings, E_a |W2|, plus the block's rounding of y: u |y| (u |y - b2| more with a bias). The machine has none here:
       it stores y after the gate weight.
    4. Combine: both round w y once (2u |w y|); the block rounds after each of its k - 1 additions, the machine once at the end, and all
       partial sums are at most S = sum_k |w_k y_k|. With step 3 this is (k + 3) u S. Each further level at which a machine rounds (hub,
       switch) adds u S.

    So |difference| <= (k + 3) u S + sum_k |w_k| E_a |W2|, and 2u |output| where the block adds shared experts. Products of two errors and
    float32's own rounding are below the factor 1.05.
    """
    calls = []
    hook = block.experts.register_forward_pre_hook(lambda _, args: calls.append(args))
    out = output(block(x)).float().flatten(0, -2)
    hook.remove()
    rows, index, weight = calls[0]
    experts, total = ModuleExperts(block.experts), torch.zeros_like(out)
    for e in range(experts.n_experts):
        token, place = torch.where(index == e)
        if len(token):
            w = weight[token, place, None].float().abs()
            total.index_add_(0, token, w * row_bound(block.experts, experts, e, rows[token].float()))
            y = experts.gemm2(e, experts.act(e, experts.gemm1(e, rows[token].float().numpy())))
            total.index_add_(0, token, (index.shape[1] + 2) * U * w * torch.from_numpy(y).abs())
    return 1.05 * (total + 2 * U * out.abs())


def row_bound(module: torch.nn.Module, experts: ModuleExperts, e: int, x: torch.Tensor) -> torch.Tensor:
    """Steps 1 to 3 for rows of one expert, but for step 3's u |y| the error of y before its gate weight."""
    h = torch.from_numpy(experts.gemm1(e, x.numpy()))
    eh = 2 * U * h.abs()
    if experts.layout.has_bias:
        eh += U * (h - module.gate_up_proj_bias[e].float()).abs()
    h.requires_grad_()
    a = module._apply_gate(h)
    slope = torch.autograd.grad(a.sum(), h)[0].abs() * eh
    h, a = h.detach(), a.detach()
    if module.is_concatenated:
        (gate, up), brought = h.chunk(2, dim=-1), sum(slope.chunk(2, dim=-1))
    else:
        (gate, up), brought = (h[:, ::2], h[:, 1::2]), slope[:, ::2] + slope[:, 1::2]
    ea = brought + (5 * U * a.abs() + 0.2239 * U * (gate * (up + 1)).abs() if experts.layout.has_bias else 3 * U * a.abs())
    w2 = module.down_proj[e].detach().float().abs()
    y = torch.from_numpy(experts.gemm2(e, a.numpy())).abs()
    out = ea @ (w2 if module.is_transposed else w2.T) + U * y
    if experts.layout.has_bias:
        out += U * (y - module.down_proj_bias[e].detach().float()).abs()
    return out


@pytest.mark.parametrize("name", BLOCKS)
def test_bfloat16_forward_stays_within_the_rounding_bound(name: str) -> None:
    block = make_block(name, **SIZES, dtype="bfloat16", seed=2)
    x, _ = tensors((4, 50, 48), torch.bfloat16)
    with torch.no_grad():
        expected, found = output(block(x)), output(wrap(block, DenseMachine())(x))
    bound = bound_bf16(block, x).detach()
    error = (found.float() - expected.float()).flatten(0, -2).abs()
    assert found.dtype == torch.bfloat16
    assert bool((error <= bound).all())
    # A bound that allows anything would prove nothing.
    assert float((error / bound).max()) > 0.05


@pytest.mark.parametrize("name", BLOCKS)
def test_bfloat16_forward_and_backward_in_norm(name: str) -> None:
    """Every tensor within 2.5u of the block's own, relative, in the Euclidean norm.

    Roundings to nearest act like independent errors of 0.42u root mean square (u times a uniform error over a logarithmic mantissa). A
    value of the output or of a gradient passes at most about 25 of them on the two sides together (gpt-oss, the longest: 16 forward, then
    weighting, GEMM-2 dgrad, five operations of the activation, GEMM-1 dgrad and the sum), and 0.42u sqrt(25) = 2.1u. Measured: 0.6u to 2.0u.
    """
    block = make_block(name, **SIZES, dtype="bfloat16", seed=3)
    x, dy = tensors((4, 50, 48), torch.bfloat16)
    expected, found = run(block, x, dy), run(wrap(block, DenseMachine()), x, dy)
    assert set(found) == set(expected) == {"y", "x"} | {n for n, _ in block.named_parameters()}
    assert {n: d for n, t in expected.items() if (d := float((found[n] - t).norm() / t.norm())) > 2.5 * U} == {}


def test_the_block_is_left_alone_and_the_parameters_are_shared() -> None:
    block = make_block("deepseek-v3", **SIZES)
    before = {n: type(m) for n, m in block.named_modules()}
    wrapped = wrap(block, DenseMachine())
    wrapped.train()
    wrapped.gate.register_forward_hook(lambda *_: None)
    assert {n: type(m) for n, m in block.named_modules()} == before
    assert not block.training
    assert not block.gate._forward_hooks
    assert not block.gate.training
    assert {n: id(p) for n, p in wrapped.named_parameters()} == {n: id(p) for n, p in block.named_parameters()}
    assert {n: id(p) for n, p in wrapped.named_buffers()} == {n: id(p) for n, p in block.named_buffers()}
    assert wrapped.experts.num_experts == 8
    wrapped.load_state_dict(block.state_dict())


def test_an_optimizer_step_on_the_wrapped_block_moves_the_own_block() -> None:
    block = make_block("qwen3-moe", **SIZES)
    wrapped, (x, dy) = wrap(block, DenseMachine()), tensors((1, 9, 48), torch.float32)
    before = block(x)
    wrapped(x).backward(dy)
    torch.optim.SGD(wrapped.parameters(), lr=0.01).step()
    assert distance(block(x), before) > 1e-3
    assert distance(wrapped(x), block(x)) < 1e-5


def test_functional_call_uses_the_weights_it_is_given() -> None:
    block, other = (make_block("mixtral", **SIZES, seed=s) for s in (1, 2))
    x, _ = tensors((1, 9, 48), torch.float32)
    found = torch.func.functional_call(wrap(block, DenseMachine()), dict(other.named_parameters()), (x,))
    assert distance(found, other(x)) < 1e-5


def test_twice_in_one_graph() -> None:
    block = make_block("gpt-oss", **SIZES)
    wrapped, (x, dy) = wrap(block, DenseMachine()), tensors((2, 7, 48), torch.float32)

    def twice(module: torch.nn.Module) -> Any:
        return lambda x: output(module(output(module(x)) + x))

    for module in (block, wrapped):
        module.forward_twice = twice(module)
    expected = gradients(block, block.forward_twice, x, dy)
    found = gradients(wrapped, wrapped.forward_twice, x, dy)
    assert {n: d for n in expected if (d := distance(found[n], expected[n])) > 2e-5} == {}


def gradients(block: torch.nn.Module, function: Any, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    block.zero_grad()
    function(x).backward(dy)
    return {n: p.grad.clone() for n, p in block.named_parameters()}


def test_two_backward_passes_through_one_forward_add_up() -> None:
    block = make_block("mixtral", **SIZES)
    wrapped, (x, dy) = wrap(block, DenseMachine()), tensors((1, 9, 48), torch.float32)
    y = wrapped(x)
    y.backward(dy, retain_graph=True)
    once = {n: p.grad.clone() for n, p in block.named_parameters()}
    y.backward(dy)
    assert all(torch.equal(p.grad, 2 * once[n]) for n, p in block.named_parameters())


def test_no_grad_and_frozen_parameters() -> None:
    block = make_block("gpt-oss", **SIZES)
    wrapped, (x, dy) = wrap(block, DenseMachine()), tensors((2, 7, 48), torch.float32)
    with torch.no_grad():
        assert not output(wrapped(x)).requires_grad
    block.experts.down_proj.requires_grad_(False)
    found = run(wrapped, x, dy)
    assert "experts.down_proj" not in found
    assert "experts.gate_up_proj" in found


def test_shapes_are_the_blocks_own() -> None:
    wrapped = wrap(make_block("deepseek-v3", **SIZES), DenseMachine())
    x, _ = tensors((2, 7, 48), torch.float32)
    assert torch.equal(wrapped(x).flatten(0, 1), wrapped(x.flatten(0, 1)))


def test_an_empty_input() -> None:
    wrapped = wrap(make_block("mixtral", **SIZES), DenseMachine())
    assert wrapped(torch.zeros(1, 0, 48)).shape == (1, 0, 48)


@pytest.mark.parametrize("mark", [-1, 8])
def test_dropped_places_add_nothing_and_get_no_gradient(mark: int) -> None:
    wrapped = wrap(make_block("gpt-oss", **SIZES), DenseMachine())
    x, dy = tensors((6, 48), torch.float32)
    index = torch.tensor([[0, 3, 7], [1, mark, 2], [mark, mark, mark], [4, 5, mark], [6, 7, 0], [2, 3, 4]])
    weight = torch.full((6, 3), 0.4, requires_grad=True)
    dropped = (index < 0) | (index > 7)
    y = wrapped.experts(x, index, weight)
    y.backward(dy)
    assert torch.count_nonzero(y[2]) == 0
    assert torch.equal(weight.grad == 0, dropped)
    # The same, with dropped places sent to expert 0 at weight 0.
    own = wrap(make_block("gpt-oss", **SIZES), DenseMachine()).experts
    assert distance(own(x, index.masked_fill(dropped, 0), weight.detach().masked_fill(dropped, 0.0)), y) < 1e-6


def test_bits_survive_the_way_to_numpy_and_back() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(256, 256).T
    array = to_array(every)
    assert array.dtype == ml_dtypes.bfloat16
    assert torch.equal(to_tensor(array, every, "").view(torch.int16), every.contiguous().view(torch.int16))
    x = torch.randn(3, 4)
    assert np.shares_memory(to_array(x), x.numpy())
    with pytest.raises(ValueError, match="read-only"):
        to_array(x)[0, 0] = 1.0
    assert torch.equal(to_tensor(to_array(x), every.new_empty(3, 4), ""), x.bfloat16())


def test_the_machine_sees_every_dropped_place_as_minus_one() -> None:
    seen = []

    class Watching(DenseMachine):
        def forward(self, x: Any, expert: Any, weight: Any, experts: ModuleExperts) -> Any:
            seen.append(expert.tolist())
            return super().forward(x, expert, weight, experts)

    experts = wrap(make_block("mixtral", **SIZES), Watching()).experts
    experts(torch.ones(2, 48), torch.tensor([[0, 8, 1], [-1, 7, 8]], dtype=torch.int32), torch.ones(2, 3))
    assert seen == [[[0, -1, 1], [-1, 7, -1]]]


def test_the_machine_keeps_its_own_arrays() -> None:
    kept = []

    class Keeping(DenseMachine):
        def forward(self, *args: Any) -> Any:
            y, saved = super().forward(*args)
            kept.append(y)
            return y, saved

    y = wrap(make_block("mixtral", **SIZES), Keeping()).experts(torch.ones(2, 48), torch.tensor([[0], [1]]), torch.ones(2, 1)).detach()
    before = kept[0].copy()
    y.zero_()
    assert np.array_equal(kept[0], before)


def test_a_backward_that_failed_leaves_nothing_behind() -> None:
    class Failing(DenseMachine):
        fails = True

        def backward(self, *args: Any) -> Any:
            result = super().backward(*args)
            if self.fails:
                raise OSError("half way")
            return result

    block, machine = make_block("gpt-oss", **SIZES), Failing()
    x, dy = tensors((2, 7, 48), torch.float32)
    y = output(wrap(block, machine)(x))
    with pytest.raises(OSError, match="half way"):
        y.backward(dy, retain_graph=True)
    machine.fails = False
    block.zero_grad()
    y.backward(dy)
    found = {n: p.grad.clone() for n, p in block.named_parameters()}
    expected = run(wrap(block, DenseMachine()), x, dy)
    assert all(torch.equal(g, expected[n]) for n, g in found.items())


def test_taking_gradients_starts_them_again() -> None:
    experts = ModuleExperts(make_block("gpt-oss", **SIZES).experts)
    experts.gemm1_wgrad(2, np.ones((3, 48), np.float32), np.ones((3, 80), np.float32))
    first, second = experts.take_grads(), experts.take_grads()
    assert float(first["gate_up_proj"].sum()) == 3 * 48 * 80
    assert float(first["gate_up_proj_bias"].sum()) == 3 * 80
    assert not any(g.any() for g in second.values())


def test_zero_copy_weights_and_float32_arrays() -> None:
    module = make_block("gpt-oss", **SIZES).experts
    experts = ModuleExperts(module)
    with torch.no_grad():
        module.gate_up_proj.fill_(0.5)
    x = np.ones((2, 48), np.float32)
    assert np.allclose(experts.gemm1(3, x), 24.0 + module.gate_up_proj_bias[3].detach().numpy())
    assert (experts.n_experts, experts.hidden, experts.inner, experts.mid) == (8, 48, 80, 40)


def test_an_input_changed_in_place_is_noticed() -> None:
    wrapped = wrap(make_block("mixtral", **SIZES), DenseMachine())
    y = wrapped(torch.ones(1, 4, 48))
    with torch.no_grad():
        wrapped.experts.down_proj.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_whole_model_with_several_expert_layers() -> None:
    model = torch.nn.Sequential(make_block("mixtral", **SIZES), make_block("qwen3-moe", **SIZES, seed=4))
    x, dy = tensors((1, 9, 48), torch.float32)
    expected, found = run(model, x, dy), run(wrap(model, DenseMachine()), x, dy)
    assert {n: d for n in expected if (d := distance(found[n], expected[n])) > 2e-5} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_language_model_trains_through_the_machine(dtype: torch.dtype) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2, experts_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config).to(dtype)
    ids = torch.randint(64, (2, 12))
    losses = []
    for module in (model, wrap(model, DenseMachine())):
        model.zero_grad()
        loss = module(ids, labels=ids, output_router_logits=True).loss
        loss.backward()
        losses.append((float(loss.detach()), {n: p.grad.float() for n, p in model.named_parameters()}))
    tolerance = 1e-5 if dtype == torch.float32 else 4 * U
    assert losses[1][0] == pytest.approx(losses[0][0], rel=tolerance)
    assert {n: d for n, t in losses[0][1].items() if (d := float((losses[1][1][n] - t).norm() / t.norm())) > tolerance} == {}


def test_blocks_are_reproducible_and_leave_the_random_state_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = (make_block("deepseek-v3", **SIZES, seed=7, dtype=d) for d in ("float32", torch.float32))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.gate.weight, make_block("deepseek-v3", **SIZES, seed=8).gate.weight)
    assert float(first.gate.e_score_correction_bias.abs().max()) > 0


@pytest.mark.parametrize("name", BLOCKS)
def test_outputs_of_blocks_are_of_order_one(name: str) -> None:
    block = make_block(name, hidden=64, expert_hidden=96, n_experts=16, topk=4, seed=1)
    spread = float(output(block(tensors((1, 64, 64), torch.float32)[0])).detach().std())
    assert 0.3 < spread < 3.0
