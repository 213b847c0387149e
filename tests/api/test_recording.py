"""Texts for `capture`: what is read, and how long a text may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.api.recording import read_text
from dysharp.base.errors import ConfigError


def test_a_text_of_more_than_64_mib_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    long, short = tmp_path / "long.txt", tmp_path / "short.txt"
    with long.open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(ConfigError, match=r"long\.txt: found 67108865 bytes, expected at most 67108864"):
        read_text(long)
    short.write_text("größer", encoding="utf-8")
    assert read_text(short) == "größer"
    with pytest.raises(ConfigError, match="No such file"):
        read_text(tmp_path / "none.txt")
