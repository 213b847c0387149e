"""The extra is asked for before it is used, and a tokenizer no more often than needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dysharp.base.errors import ConfigError
from dysharp.functional.torch import extra
from dysharp.functional.torch.pretrained import load_pretrained, load_tokenizer, token_ids


class Words:
    """A tokenizer with one id per 20 characters. It keeps the length of each text that it gets."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, text: str, verbose: bool) -> dict[str, Any]:
        self.lengths.append(len(text))
        return {"input_ids": list(range(len(text) // 20))}


def test_without_torch_loading_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="found no torch, expected the extra"):
        load_pretrained(tmp_path)


def test_an_old_transformers_is_refused_for_a_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(extra, "version", lambda name: "4.57.0")
    with pytest.raises(ConfigError, match=r"found transformers 4\.57\.0, expected 5 or newer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("length", "calls", "found"), [(40, [40], 2), (48, [48], 2), (49, [48, 49], 2), (60, [48, 60], 3), (10_000, [48, 10_000], 3)]
)
def test_a_tokenizer_reads_the_whole_text_only_where_its_start_has_too_few_tokens(length: int, calls: list[int], found: int) -> None:
    """For three tokens the first 48 characters are tried; of these it makes two."""
    tokenizer = Words()
    assert len(token_ids("x" * length, tokenizer, 3, 256)) == found
    assert tokenizer.lengths == calls
