"""No answer of a verb moves without a new model version: the stored questions give the floats they gave before."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from answer_points import RECORD, STORED, answer, kept, line_of, moved, questions, report, same
from answer_questions import SLOW
from version_record import Recorded, earlier_records, faults, file_text, lost_lines, read_record, recorded

from dysharp.analysis import MODEL_VERSION

TEXT, RECORDED = STORED.read_text(), RECORD.read_text()
FILE = json.loads(TEXT)
ANSWERS: dict[str, Any] = FILE["points"]
QUESTIONS = questions()


@pytest.mark.sampled
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (verb in SLOW)) for name, (verb, _) in QUESTIONS.items()])
def test_an_answer_is_what_it_was(name: str) -> None:
    assert moved(ANSWERS[name], answer(*QUESTIONS[name])) == []


def test_the_stored_answers_are_those_that_are_asked_for_and_of_this_version() -> None:
    assert FILE["model_version"] == MODEL_VERSION, "write them anew: python tests/replay/answer_points.py --write --why TEXT"
    assert set(ANSWERS) == set(QUESTIONS)
    assert [name for name, found in ANSWERS.items() if "refused" in found] == []


def test_at_least_eighty_answers_of_every_verb() -> None:
    count = Counter(verb for verb, _ in QUESTIONS.values())
    assert sum(count.values()) >= 80
    assert min(count[verb] for verb in ("serve", "step", "plan", "model", "collective")) >= 10


def test_the_stored_file_is_the_recorded_one_and_every_line_says_why() -> None:
    assert faults(TEXT, read_record(RECORDED), STORED.name, RECORD.name) == []
    assert [line.version for line in read_record(RECORDED) if not line.note.strip()] == []


def test_no_line_of_the_record_was_rewritten() -> None:
    earlier = earlier_records(RECORD)
    if earlier is None:
        pytest.skip("no git checkout")
    assert lost_lines(RECORDED, earlier) == []


def test_a_moved_answer_needs_a_new_version() -> None:
    name = next(iter(ANSWERS))
    field = next(field for field, value in ANSWERS[name].items() if isinstance(value, float))
    other = ANSWERS[name] | {field: 1.25 * ANSWERS[name][field]}
    with pytest.raises(ValueError, match="found 1 answers moved or gone under model version"):
        kept(ANSWERS, ANSWERS | {name: other})
    text = file_text(MODEL_VERSION, ANSWERS | {name: other})
    assert "a change needs a new version" in faults(text, read_record(RECORDED), STORED.name, RECORD.name)[0]


def test_a_report_says_old_new_and_percent() -> None:
    before, now = {"a": {"x_us": 2.0, "layout": "TP8"}, "b": {}}, {"a": {"x_us": 3.0, "layout": "TP4"}, "c": {}}
    assert list(report(before, now)) == [
        "a: 2 of 2 fields moved", "  x_us: 2.0 -> 3.0 (+50 %)", "  layout: 'TP8' -> 'TP4'", "c: new", "b: gone",
    ]  # fmt: skip
    assert kept({"b": {}}, {"c": {}, "b": {}}) == {"b": {}, "c": {}}


def test_floats_are_equal_up_to_the_last_bits_and_nothing_else_is() -> None:
    assert same(1.0, 1.0 + 2**-52)
    assert not same(1.0, 1.0 + 1e-11)
    assert not same(0.0, 1e-30)
    assert not same(1, 2)
    assert not same(None, 1.0)


def test_a_reason_with_commas_is_read_back() -> None:
    line = recorded("99", {})
    written = Recorded(line.version, line.points, line.sha256, 'a, "b"')
    assert read_record("version,points,sha256,note\n" + line_of(written)) == [written]
