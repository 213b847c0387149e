"""The digest of the package's sources."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dysharp.base import sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one file that Rows depend on and one that they do not, in place of this one."""
    for name, text in (("api/run.py", "a = 1\n"), ("cli/app.py", "b = 1\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "files", lambda package: tmp_path)
    sources.code_digest.cache_clear()
    sources._stamps.cache_clear()
    yield tmp_path
    sources.code_digest.cache_clear()
    sources._stamps.cache_clear()


def test_an_edited_file_is_noticed_and_a_touched_one_is_not(package: Path) -> None:
    first = sources.code_digest()
    assert not sources.sources_changed()
    (package / "cli/app.py").write_text("b = 2\n")
    assert not sources.sources_changed(), "no Row depends on the command line"
    (package / "api/run.py").touch()
    assert not sources.sources_changed()
    (package / "api/run.py").write_text("a = 2\n")
    assert sources.sources_changed()
    assert sources.code_digest() == first, "this process still runs the code that it saw first"


def test_the_first_edit_behind_the_digest_is_noticed(package: Path) -> None:
    sources.code_digest()
    (package / "api/run.py").write_text("a = 2\n")
    assert sources.sources_changed()
