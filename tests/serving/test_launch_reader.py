"""Launch lines as input: what `serve` prints is read back as it was, lines of engines' own pages, and broken lines that end in one line."""

from pathlib import Path
from typing import Any

import pytest

from dysharp import serve
from dysharp.errors import ConfigError
from dysharp.serving.launch_reader import Launch, known, read_launch

SLO = "ttft=9s,tpot=200ms"
PRINTED: list[tuple[str, str, dict[str, Any]]] = [
    ("deepseek-v3", "dp=8,ep=8", {}),
    ("deepseek-v3", "tp=8", {"kv": "fp8"}),
    ("deepseek-v3", "tp=8,ep=8", {"kv": "bf16", "mtp": 1}),
    ("deepseek-v3", "tp=8,pp=2", {"cluster": "hw-dgx-h200-x2"}),
    ("deepseek-v3", "dp=16,ep=16,slots=16", {"cluster": "hw-dgx-h200-x2"}),
    ("deepseek-v3", "dp=8,ep=8", {"cluster": "hw-gb200-nvl72", "gpus": 8}),
    ("qwen3-30b", "dp=4,ep=4", {"slo": "ttft=2s,tpot=20ms"}),
    ("qwen3-30b", "tp=2", {"isl": 300, "osl": 3000}),
    ("gpt-oss-120b", "tp=1", {}),
    ("llama3-70b", "tp=4", {"isl": 1000, "osl": 200}),
]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("model", "layout", "asked"), PRINTED, ids=[f"{model} {layout}" for model, layout, _ in PRINTED])
def test_what_is_printed_is_read_back(engine: str, model: str, layout: str, asked: dict[str, Any]) -> None:
    same = {"cluster": "hw-dgx-h200", "slo": SLO} | {key: value for key, value in asked.items() if key not in ("kv", "mtp")}
    first = serve(model, engine=engine, layouts=[layout], **{"cluster": "hw-dgx-h200", "slo": SLO} | asked)
    line = first.launch()
    again = serve(launch=line, **same)
    assert again.launch() == line
    assert again.best[0].replica.layout == first.best[0].replica.layout
    assert (again.formats, again.model, again.engine.name) == (first.formats, first.model, engine)
    for name in ("tokens_per_gpu", "served", "system", "memory"):
        assert getattr(again.best[0], name) == getattr(first.best[0], name)
    assert not [text for text in again.header if "not counted" in text]
