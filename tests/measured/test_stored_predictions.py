"""The table of predictions is not written where a prediction of a Program moved under one model version."""

from __future__ import annotations

from typing import Any

from tests.measured.stored_predictions import why_not_written


def test_predictions_of_programs_keep_their_model_version() -> None:
    before: dict[str, dict[str, Any]] = {"model version": {"version": "1"}, "layer": {"a": 1.0}, "operator": {"b": 2.0}}
    assert why_not_written(before, before | {"operator": {"b": 3.0}, "layer": {"new": 1.0}}) == ""
    assert why_not_written(before, before | {"layer": {"a": 1.5}}).startswith("found 1 moved predictions")
    assert why_not_written(before, before | {"layer": {"a": 1.5}, "model version": {"version": "2"}}) == ""
