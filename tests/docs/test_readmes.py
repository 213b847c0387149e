"""Every example in a README or a page of docs runs and prints what it says."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in [*ROOT.glob("dysharp/**/README.md"), *ROOT.glob("docs/*.md"), ROOT / "README.md"] if ">>>" in p.read_text())


@pytest.mark.sampled
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples(page: Path) -> None:
    if re.search(r">>> (import .*\btorch|from transformers)", page.read_text()):  # the extra "torch" may be absent
        pytest.importorskip("transformers")
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
