"""The record of the tests marked `long`: what it holds, and what its line says."""

from __future__ import annotations

import tomllib
from datetime import date

import pytest

from dysharp.analysis import MODEL_VERSION
from tests.long_tests import PASSED, collected, last_line, never, passed, text_of

CASES = (
    '<testcase classname="tests.test_long_tests" name="a" time="1.2" />'
    '<testcase classname="tests.test_long_tests.TestOf" name="b" time="60.0"><skipped message="no file" /></testcase>'
    '<testcase classname="tests.figures.test_headline" name="c" time="3" /><testcase classname="tests.figures.test_headline" name="d" time="3">'
    "<failure>assert</failure></testcase>"
)
REPORT = f'<testsuites><testsuite name="pytest" tests="4">{CASES}</testsuite></testsuites>'
DAY, COMMIT = date(2026, 1, 2), "0123456789abcdef"


def test_files_with_a_failure_have_no_entry():
    found = passed(REPORT, DAY, COMMIT)
    said = {"date": DAY, "commit": COMMIT, "model_version": MODEL_VERSION, "passed": 1, "skipped": 1}
    assert found == {"tests/test_long_tests.py": {**said, "seconds": 61.2}}
    assert tomllib.loads(text_of(found)) == {"tests/test_long_tests.py": {**said, "seconds": 61}}


def test_a_file_that_is_not_collected_is_no_file_without_long_tests():
    """`long_tests.py tests/mistyped.py` ran nothing and ended with 0."""
    with pytest.raises(SystemExit, match="mistyped"):
        collected(["tests/mistyped.py"])


def test_the_line_says_what_is_left():
    found = passed(REPORT, DAY, COMMIT)
    assert last_line(found) == f"long tests: 1 passed at model version {MODEL_VERSION} (1 files)"
    assert last_line(found, "next").endswith("; today's is next: run python tests/long_tests.py --left")


def test_files_that_never_passed_are_named():
    marked = never({}).removeprefix("; never passed: ").split(", ")
    assert "tests/silicon/test_rtl.py" in marked
    assert never({name: {} for name in marked[1:]}) == f"; never passed: {marked[0]}"
    assert never({name: {} for name in marked}) == ""


def test_the_stored_record_has_a_line():
    if not PASSED.exists():
        pytest.skip("no run has passed yet")
    record = tomllib.loads(PASSED.read_text())
    assert last_line(record).startswith("long tests: ")
    assert all(one["passed"] + one["skipped"] > 0 for one in record.values())
