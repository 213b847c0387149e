"""Which models were measured: by their shape, whatever a file calls them and in whatever format it holds them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from dysharp.measured.serving.predictions import outside_of
from dysharp.serving.work import Scenario
from dysharp.specs import load_whole
from dysharp.specs.whole import WholeModel


def _outside(model: WholeModel) -> list[str]:
    replica: Any = SimpleNamespace(model=model, machine=SimpleNamespace(gpu=SimpleNamespace(name="b200")), layout=SimpleNamespace(dp=1, ep=1))
    return outside_of(replica, Scenario(8.0, 1024.0, 1024.0))


def test_a_model_is_known_by_its_shape() -> None:
    for name in ("deepseek-v3", "llama3-8b"):
        packaged = load_whole(name)
        layer = packaged.layer and replace(packaged.layer, name="mine", source="mine", gemm_dtype="bf16", checkpoint="nvfp4")
        assert _outside(replace(packaged, name="mine", source="mine", layer=layer, checkpoint="fp4", context=1, repository="")) == []
        assert _outside(replace(packaged, vocab=1024))[0].startswith(f"model {name} (measured: deepseek-v3, ")
