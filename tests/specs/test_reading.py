"""A file is read to its last byte, up to the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import reading
from dysharp.specs.reading import read_text


def test_a_file_as_long_as_the_limit_is_read_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 10)
    path = tmp_path / "a.toml"
    path.write_text("a = 123456")
    assert read_text(path) == "a = 123456"
    path.write_text("a = 1234567")
    with pytest.raises(ConfigError, match=r"a\.toml: found 11 bytes, expected at most 10"):
        read_text(path)
