"""Tables of fitted constants that are refused."""

from __future__ import annotations

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs.constants import constants_of
from dysharp.specs.fitted import Fitted

GOOD = '[a]\nvalue = 1\nlow = 1\nhigh = 3\nunit = "us"\nmeaning = "m"\nstage = "nccl"\nfitted_on = "r"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GOOD, "[a]\nvalue = 1", "x: a.low: missing .* a.fitted_on: missing"),
        ("low = 1", "low = 2", "x: a.value: found 1.0, expected 2.0 to 3.0"),
        ("low = 1", "low = 0", "x: a.low: found 0.0, expected greater than 0"),
        ("value = 1", "value = true", "x: a.value: found True, expected a valid number"),
        ("value = 1", "value = inf", "x: a.value: found inf, expected a finite number"),
        ('meaning = "m"', 'meaning = ""', "x: a.meaning: found '', expected String should have at least 1 character"),
    ],
)
def test_bad_constants_are_refused(old: str, new: str, message: str) -> None:
    assert constants_of(Fitted, GOOD, "x")["a"].value == 1
    with pytest.raises(ConfigError, match=message):
        constants_of(Fitted, GOOD.replace(old, new), "x")
