"""The record of the tests marked `long`: what it holds, and what its line says."""

from __future__ import annotations

import tomllib
from datetime import date

import pytest

from dysharp.analysis import MODEL_VERSION
from tests.long_tests import PASSED, last_line, record_text

REPORT = '<testsuites><testsuite name="pytest" errors="0" failures="0" skipped="2" tests="30" time="61.2"></testsuite></testsuites>'


def test_a_record_counts_what_passed():
    text = record_text(REPORT, date(2026, 1, 2), "0123456789abcdef", 61.2)
    said = {"date": date(2026, 1, 2), "commit": "0123456789abcdef", "passed": 28, "skipped": 2, "seconds": 61}
    assert tomllib.loads(text) == {**said, "model_version": MODEL_VERSION}
    assert last_line(text) == "long tests: 28 passed, 2 skipped on 2026-01-02 in 61 s, commit 0123456789"
    assert last_line(text, since="7").endswith("commit 0123456789, 7 commits ago")


def test_another_model_version_is_said():
    text = record_text(REPORT, date(2026, 1, 2), "0123456789abcdef", 61.2)
    asked = f"at model version {MODEL_VERSION}, today's is next: run python tests/long_tests.py"
    assert last_line(text, "next").endswith(asked)


def test_the_stored_record_has_a_line():
    if not PASSED.exists():
        pytest.skip("no run has passed yet")
    assert last_line(PASSED.read_text()).startswith("long tests: ")
    assert tomllib.loads(PASSED.read_text())["passed"] > 0
