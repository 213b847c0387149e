"""The quick selection (README's test command) still touches every folder, every system, and the equality of engine and oracle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dysharp.systems import all_systems

TESTS = Path(__file__).parent


@pytest.mark.slow
def test_the_quick_selection_touches_every_folder_and_every_system() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(TESTS)]
    listed = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True).stdout.splitlines()
    selected = [line for line in listed if "::" in line]
    folders = {str(file.parent.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py")} - {"tests"}
    assert folders - {line.partition("::")[0].rpartition("/")[0] for line in selected} == set()
    for test in ("test_system_conforms", "test_packets_carry_the_same_bytes", "test_point_is_replayed", "test_hard_routings"):
        ids = [line for line in selected if f"::{test}[" in line]
        missing = [name for name in all_systems() if not any(f"[{name}" in line or f"-{name}" in line for line in ids)]
        assert missing == [], test
    assert sum("::test_engine_equals_oracle[" in line for line in selected) > 1
