"""No simulated number moves without a new model version: the stored points give the Traces, times and bytes they gave before."""

from __future__ import annotations

import json

import pytest
from replay_points import MODEL, STORED, name_of, points, replay

from dysharp.analysis import MODEL_VERSION

FILE = json.loads(STORED.read_text())
POINTS = {name_of(point): point for point in points()}


def test_the_stored_points_are_those_of_today_and_of_this_model_version():
    assert FILE["model_version"] == MODEL_VERSION, "write them anew: python tests/replay/replay_points.py"
    assert set(FILE["points"]) == set(POINTS)
    assert MODEL.name == "replay"


@pytest.mark.parametrize("name", POINTS)
def test_point_is_replayed(name):
    replayed, stored = replay(POINTS[name]), FILE["points"][name]
    assert replayed.keys() == stored.keys()
    for field, value in stored.items():  # the last bits of a sum of floats may depend on the build of NumPy
        assert replayed[field] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), field
