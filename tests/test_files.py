"""Files are written complete or not at all, and a bad name is refused before long work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.base.files import cache_folder, check_destination, write_file, write_text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "found a folder, expected the name of a file"),
        (".", "found a folder, expected the name of a file"),
        ("no/such/x.md", r"found no folder '.*no/such'"),
        ("x" * 300, "File name too long"),
        ("a\0b", "found a control character in the name"),
        ("\x1b]0;title\x07", "found a control character in the name"),
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


def test_one_module_knows_the_cache_folder_of_the_user() -> None:
    package = Path(dysharp.__file__).parent
    assert [path.name for path in package.rglob("*.py") if "XDG_CACHE_HOME" in path.read_text()] == ["files.py"]


@pytest.mark.parametrize("own", ["", "mine"])
def test_kernels_are_kept_in_it_unless_numba_is_told_otherwise(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / own) if own else "")
    code = "import numba; from dysharp.engine.kernel import source_digest; print(source_digest(), numba.config.CACHE_DIR)"
    digest, folder = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert folder == str(tmp_path / own / digest if own else cache_folder(digest))
