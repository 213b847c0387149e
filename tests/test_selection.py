"""The quick selection (README's test command) touches every folder, every system, and the equality of engine and oracle; no file is `long` alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dysharp.systems import all_systems
from tests.functional.test_packets import NO_PACKETS

TESTS = Path(__file__).parent
COLLECT = """
import sys, pytest
class Selections:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            print("selection", "slow" if "slow" in marks else "long" if "long" in marks else "quick", item.nodeid)
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:xdist", "-o", "addopts=--strict-markers --import-mode=importlib"], plugins=[Selections()]))
"""


@pytest.mark.slow
def test_what_the_selections_touch() -> None:
    listed = subprocess.run([sys.executable, "-c", COLLECT], cwd=TESTS.parent, capture_output=True, text=True, check=True).stdout.splitlines()
    lines = [line.split(" ", 2)[1:] for line in listed if line.startswith("selection ")]
    selected = [name for selection, name in lines if selection == "quick"]
    folders = {str(file.parent.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py")} - {"tests"}
    assert folders - {name.partition("::")[0].rpartition("/")[0] for name in selected} == set()
    for test in ("test_system_conforms", "test_packets_carry_the_same_bytes", "test_point_is_replayed", "test_hard_routings"):
        ids = [name for name in selected if f"::{test}[" in name]
        missing = [name for name in all_systems() if not any(f"[{name}" in line or f"-{name}" in line for line in ids)]
        assert set(missing) <= (NO_PACKETS if test == "test_hard_routings" else set()), test
    assert sum("::test_engine_equals_oracle[" in name for name in selected) > 1
    of_file: dict[str, set[str]] = {}
    for selection, name in lines:
        of_file.setdefault(name.partition("::")[0], set()).add(selection)
    assert "long" in {selection for selections in of_file.values() for selection in selections}
    assert [file for file, selections in of_file.items() if selections == {"long"}] == [], "no cheaper test stands in"
