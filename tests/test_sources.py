"""The digest of the package's sources."""

from pathlib import Path

import pytest

from dysharp import sources


def test_an_edited_file_is_noticed_and_a_touched_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "cli").mkdir()
    code, screen = tmp_path / "api" / "run.py", tmp_path / "cli" / "app.py"
    code.write_text("a = 1\n")
    screen.write_text("b = 1\n")
    monkeypatch.setattr(sources, "files", lambda package: tmp_path)
    sources.code_digest.cache_clear()
    sources._stamps.cache_clear()
    try:
        first = sources.code_digest()
        assert not sources.sources_changed()
        screen.write_text("b = 2\n")
        assert not sources.sources_changed(), "no Row depends on the command line"
        code.touch()
        assert not sources.sources_changed()
        code.write_text("a = 2\n")
        assert sources.sources_changed()
        assert sources.code_digest() == first, "this process still runs the code that it saw first"
    finally:
        sources.code_digest.cache_clear()
        sources._stamps.cache_clear()
