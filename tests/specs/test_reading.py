"""Files are read to their last byte, up to a limit, by one opener; JSON is strict."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.base.reading import json_of, parse_toml, read_text


def test_a_file_as_long_as_the_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = 123456")
    assert read_text(path, 10) == "a = 123456"
    path.write_text("a = 1234567")
    with pytest.raises(ConfigError, match=r"a\.toml: found 11 bytes, expected at most 10"):
        read_text(path, 10)


def test_a_file_that_waits_is_refused_in_one_line(tmp_path: Path) -> None:
    """As /proc/kmsg does for root: a regular file without data and without an end."""
    ours, theirs = pty.openpty()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stat.S_ISREG", lambda mode: True)
        with pytest.raises(ConfigError, match="found no data and no end, expected a file that does not wait"):
            read_text(Path(os.ttyname(theirs)))
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}', "f: malformed JSON: found the key 'c' twice, expected it once"),
        ("[1, NaN]", "f: malformed JSON: found NaN, expected a number"),
        ('{"a": 1,', r"f: malformed JSON: .* \(at line 1, column 9\)"),
        ("[" * 100_000, "f: malformed JSON: nested too deeply"),
    ],
    ids=("twice", "NaN", "end", "deep"),
)
def test_json_is_strict(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        json_of(text, "f")


def test_a_toml_text_that_is_too_deep_says_so() -> None:
    with pytest.raises(ConfigError, match=r"f: malformed TOML: nested too deeply"):
        parse_toml("a = " + "[" * 100_000, "f")
