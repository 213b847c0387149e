"""Files are written complete or not at all, and a bad name is refused before long work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dysharp.errors import ConfigError
from dysharp.files import check_destination, write_file, write_text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "found a folder, expected the name of a file"),
        (".", "found a folder, expected the name of a file"),
        ("no/such/x.md", r"found no folder '.*no/such'"),
        ("x" * 300, "File name too long"),
        ("a\0b", r"cannot be written: .*null"),
    ],
)
def test_a_bad_destination_is_one_line(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        check_destination(name)
    with pytest.raises(ConfigError, match=message):
        write_text(name, "text")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing_and_the_old_file(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.md", "old")

    def full(stream: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"a.md: cannot be written: No space left on device"):
        write_file(file, full)
    assert [p.name for p in tmp_path.iterdir()] == ["a.md"]
    assert file.read_text() == "old"


def test_the_longest_name_a_link_and_a_device(tmp_path: Path) -> None:
    assert write_text(tmp_path / ("x" * 255), "long").read_text() == "long"
    (tmp_path / "link").symlink_to("target")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "text")  # a pipe is not replaced by a file
    assert os.read(reader, 10) == b"text"
    os.close(reader)
