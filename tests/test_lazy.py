"""A command loads its own modules only."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dysharp
import dysharp.api


def test_a_comparison_loads_no_other_verb() -> None:
    found = "import sys, dysharp; dysharp.compare; print(*(m for m in sys.modules if m.startswith('dysharp.')))"
    loaded = set(subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True).stdout.split())
    assert "dysharp.api.comparison" in loaded
    others = {"dysharp.planning.advice.advise", "dysharp.api.timed", "dysharp.analysis.timeline", "dysharp.engine.flit", "dysharp.functional"}
    assert loaded.isdisjoint(others)


@pytest.mark.parametrize("package", [dysharp, dysharp.api])
def test_every_public_name_loads(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'gone'"):
        package.gone  # type: ignore[attr-defined]  # noqa: B018


def test_errors_are_there_without_an_import_of_their_own() -> None:
    code = "import dysharp\ntry: dysharp.Slo(tpot='50ms')\nexcept dysharp.errors.ConfigError as error: print(error)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "slo: found '50ms', expected a number\n"
