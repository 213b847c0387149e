"""MoE blocks of known models, built offline with random weights."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dysharp.base import Cells, ConfigError, check_word, frozen, read_toml
from dysharp.functional.torch.extra import require_transformers

if TYPE_CHECKING:
    import torch

_WORDS = read_toml(Path(__file__).parents[1] / "words.toml")
BLOCKS: Cells = _WORDS["blocks"]


@frozen
class _Sizes:
    hidden: int
    expert_hidden: int
    n_experts: int
    topk: int


def make_block(
    name: str, *, hidden: int, expert_hidden: int, n_experts: int, topk: int, dtype: str | torch.dtype = "float32", seed: int = 0
) -> torch.nn.Module:
    """A block of `BLOCKS` in its Hugging Face class, with random weights. Inputs of order 1 give outputs of order 1.

    Input and output: `[batch, sequence, hidden]` of `dtype` ("float32" or "bfloat16"); gpt-oss returns `(output, gate weights)`. The experts run in
    the `eager` implementation, which adds in the order of expert ids. Equal arguments give equal weights. The global random state does not change.
    Raises ConfigError for an unknown name, for sizes that do not fit, for another dtype, and without torch and transformers 5.
    """
    check_word(name, BLOCKS, f"block {name!r}: unknown")
    sizes = _Sizes(hidden, expert_hidden, n_experts, topk)
    _check(name, sizes)
    require_transformers()
    import torch

    kind = _dtype(name, dtype)
    with torch.random.fork_rng(devices=[]):
        block = _built(name, sizes)
    _fill(block, torch.Generator().manual_seed(seed))
    for parameter in block.parameters():
        # Parameters only: the correction bias of DeepSeek-V3 is a buffer that stays float32 in its bfloat16 models.
        parameter.data = parameter.data.to(kind)
    block.eval()
    return block


def _check(name: str, sizes: _Sizes) -> None:
    for field in ("hidden", "expert_hidden", "n_experts", "topk"):
        value = getattr(sizes, field)
        if value < 1:
            raise ConfigError(f"block {name}: found {field} {value}, expected at least 1")
    if sizes.topk > sizes.n_experts:
        raise ConfigError(f"block {name}: found topk {sizes.topk}, expected at most n_experts {sizes.n_experts}")


def _dtype(name: str, dtype: str | torch.dtype) -> torch.dtype:
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    short = str(dtype).removeprefix("torch.")
    if short not in known:
        raise ConfigError(f"block {name}: found dtype {short}, expected float32 or bfloat16")
    return known[short]


def _model(folder: str, block: str, config: str, **fields: Any) -> torch.nn.Module:
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    made: torch.nn.Module = getattr(module, block)(getattr(module, config)(experts_implementation="eager", **fields))
    return made


def _deepseek_v3(s: _Sizes) -> torch.nn.Module:
    n_group, topk_group = _groups(s.n_experts, s.topk)
    return _model(
        "deepseek_v3", "DeepseekV3MoE", "DeepseekV3Config", hidden_size=s.hidden, moe_intermediate_size=s.expert_hidden,
        n_routed_experts=s.n_experts, num_experts_per_tok=s.topk, n_group=n_group, topk_group=topk_group, n_shared_experts=1,
    )  # fmt: skip


def _groups(n_experts: int, topk: int) -> tuple[int, int]:
    """(groups, groups per token), as in DeepSeek-V3: up to 8 equal groups of at least two experts.

    A token chooses half of the groups, or more if top-k needs more.
    """
    n_group = max((g for g in range(1, 9) if n_experts % g == 0 and n_experts // g >= 2), default=0)
    if n_group == 0:
        raise ConfigError(f"block deepseek-v3: found n_experts {n_experts}, expected at least 2, because the best two experts of a group score it")
    return n_group, max(n_group // 2, 1, -(-topk * n_group // n_experts))


def _built(name: str, s: _Sizes) -> torch.nn.Module:
    if name not in _WORDS["plain_blocks"]:
        return _deepseek_v3(s)
    folder, kind, block, sizes, more = _WORDS["plain_blocks"][name]
    named = dict(zip(sizes.split(), (s.expert_hidden, s.n_experts), strict=True))
    return _model(folder, kind + block, f"{kind}Config", hidden_size=s.hidden, num_experts_per_tok=s.topk, **named, **more)


def _fill(block: torch.nn.Module, generator: torch.Generator) -> None:
    """Draw normal weights that keep the variance of the input.

    Parameters are drawn in order of name, so that weights do not depend on the order of parameters in the class.
    """
    import torch

    tensors = dict(block.named_parameters()) | dict(block.named_buffers())
    transposed = {f"{n}." for n, m in block.named_modules() if getattr(m, "is_transposed", False)}
    with torch.no_grad():
        for name, tensor in sorted(tensors.items()):
            is_bias = name.endswith("bias")
            fan_in = tensor.shape[-2 if any(name.startswith(t) for t in transposed) and not is_bias else -1]
            # The activation about halves the spread of the products of gate and up; `down_proj` restores the spread.
            gain = 2.0 if "down_proj" in name else 1.0
            tensor.normal_(0.0, 0.1 if is_bias else gain * fan_in**-0.5, generator=generator)
