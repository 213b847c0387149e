"""Real Hugging Face blocks through the machine itself: rows and packets, with faults, against the block and the recorded sums."""

from __future__ import annotations

import pytest

pytest.importorskip("torch.nn")
pytest.importorskip("transformers")

import dysharp as ds
from dysharp.base.errors import ConfigError

BLOCKS = ["deepseek-v3", "gpt-oss", "mixtral", "qwen3-moe"]
FAULTS = ("evict", "timeout", "al-tlb", "tracker", "duplicate", "reorder")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("system", "path", "inject"), [("dysharp", "packet", FAULTS), ("deepep", "row", ()), ("nvls", "packet", ())])
def test_block_equals_itself(block, dtype, system, path, inject):
    done = ds.emulate(
        system, block=block, dtype=dtype, gpus=2, tokens=4, hidden=64, expert_hidden=32, experts=8, topk=2, backward=True, path=path, inject=inject
    )
    assert done.exact
    assert done.max_rel_error <= (1e-5 if dtype == "float32" else 2.0**-5)
    assert done.holds
    assert done.path == path


def test_a_router_cannot_be_told_what_to_choose():
    with pytest.raises(ConfigError, match="inject empty: found block mixtral whose router chooses"):
        ds.emulate("dysharp", block="mixtral", inject=["empty"])
