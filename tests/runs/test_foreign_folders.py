"""Folders of studies that somebody else made: whatever lies in them, nothing outside is written, and no command waits for ever."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.figures.studies import study as module
from dysharp.figures.studies.study_folder import JOURNAL, record_of
from dysharp.runs.point import Point
from dysharp.runs.store import check_of
from tests.runs.fake_points import fake_row

pytest.importorskip("duckdb")
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes of Unix")

GRID = '[points]\nsystems = ["deepep"]\nmodels = ["S-8"]\ngpus = 4\ntokens = [16, 32]\n'
THEIRS = Point("dysharp", "S-8", "paper-gh200-nvl32", "uniform", gpus=4, tokens=8)
RECORD = record_of("a key", THEIRS, fake_row(THEIRS), "some code", 1.0)
LINE = json.dumps(RECORD | {"check": check_of(RECORD)}) + "\n"
X = hashlib.blake2b(b"a key", digest_size=8).hexdigest()
"""What the author of the journal knows: the digest of its keys, by which the part is called."""


def _duckdb_temporary(folder: Path, outside: Path) -> None:
    for name in (f"unfinished-{X}", f"tmp_unfinished-{X}"):
        (folder / name).symlink_to(outside / "victim")


def _part_names(folder: Path, outside: Path) -> None:
    """The whole name of the part, as the author of the journal learns it in a folder of their own, and DuckDB's temporary beside it."""
    own = outside / "own"
    own.mkdir()
    (own / JOURNAL).write_text(LINE)
    study(own, outside / "nothing.toml")
    name = next(own.glob("part-*")).name
    for each in (name, f"tmp_{name}", f"tmp_part-{X}"):
        (folder / each).symlink_to(outside / "victim")


def _in_place_of(name: str, make: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
    def put(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name, outside)

    return put


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "victim")


def _dangling(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "not there")


def _hard_link(path: Path, outside: Path) -> None:
    (outside / "victim").write_text(LINE)
    path.hardlink_to(outside / "victim")


def _pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path, outside: Path) -> None:
    path.mkdir()


def _link_to_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


PART = f"part-{X}-0123456789abcdef.parquet"
SHAPES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "temporary of DuckDB": (_duckdb_temporary, ""),
    "names of the part": (_part_names, ""),
    "dangling temporary": (_in_place_of(f"unfinished-{X}", _dangling), ""),
    "dangling part": (_in_place_of(PART, _dangling), ""),
    "link as part": (_in_place_of(PART, _link), ""),
    "pipe as part": (_in_place_of(PART, _pipe), ""),
    "folder as part": (_in_place_of(PART, _folder), "Is a directory"),
    "link as lock": (_in_place_of("lock", _link), "expected a folder to write to"),
    "dangling lock": (_in_place_of("lock", _dangling), "expected a folder to write to"),
    "hard link as lock": (_in_place_of("lock", _hard_link), ""),
    "pipe as lock": (_in_place_of("lock", _pipe), ""),
    "folder as lock": (_in_place_of("lock", _folder), "expected a folder to write to"),
    "link as journal": (_in_place_of(JOURNAL, _link), ""),
    "dangling journal": (_in_place_of(JOURNAL, _dangling), ""),
    "hard link as journal": (_in_place_of(JOURNAL, _hard_link), ""),
    "pipe as journal": (_in_place_of(JOURNAL, _pipe), ""),
    "folder as journal": (_in_place_of(JOURNAL, _folder), f"{JOURNAL}: Is a directory"),
    "link to a folder as journal": (_in_place_of(JOURNAL, _link_to_folder), ""),
}


def study(folder: Path, file: Path) -> Result:
    file.write_text(GRID)
    return CliRunner().invoke(cli, ["study", str(file), "--folder", str(folder)])


def seen(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Names, inodes, times and contents of all files."""
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_outside_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setattr(module, "row_of", fake_row)
    folder, outside = tmp_path / "theirs", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "victim").write_text("mine")
    (folder / JOURNAL).write_text(LINE)
    make, refused = SHAPES[shape]
    make(folder, outside)
    before = seen(outside)
    done = study(folder, tmp_path / "my.toml")
    again = study(folder, tmp_path / "my.toml")
    asked = CliRunner().invoke(cli, ["query", "select count(*) as n from points where system = 'deepep'", "--csv", "--folder", str(folder)])
    assert seen(outside) == before
    if refused:
        assert isinstance(done.exception, ConfigError), done.output
        assert refused in str(done.exception)
        assert "\n" not in str(done.exception)
    else:
        assert (done.exit_code, again.exit_code) == (0, 0), (done.output, again.output)
        assert asked.stdout == "n\n2\n", asked.output


def test_a_part_whose_name_tells_no_content_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the name that earlier versions wrote, any content would be believed."""
    monkeypatch.setattr(module, "row_of", fake_row)
    folder, file = tmp_path / "f", tmp_path / "my.toml"
    study(folder, file)
    (part,) = folder.glob("part-*")
    part.rename(folder / f"{part.name.rpartition('-')[0]}.parquet")
    done = study(folder, file)
    assert "2 points done, 0 read" in done.stdout
    assert "its name does not tell its content" in done.stderr
