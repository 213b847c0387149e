"""Tables of fitted constants that are refused."""

from __future__ import annotations

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs.fitted import fitted_from_toml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nvalue = 1", "x: a: found .* expected a table of value, low, high"),
        ('[a]\nvalue = 1\nlow = 2\nhigh = 3\nunit = "us"\nmeaning = "m"\nstage = "nccl"\nfitted_on = "r"', "expected 0 < low <= value <= high"),
        ('[a]\nvalue = true\nlow = 1\nhigh = 3\nunit = "us"\nmeaning = "m"\nstage = "nccl"\nfitted_on = "r"', "expected three finite numbers"),
        ('[a]\nvalue = 1\nlow = 1\nhigh = 3\nunit = "us"\nmeaning = ""\nstage = "nccl"\nfitted_on = "r"', "found an empty text"),
    ],
)
def test_bad_constants_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        fitted_from_toml(text, "x")
