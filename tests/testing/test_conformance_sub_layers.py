"""Every packaged system of sub-layers passes the suite."""

import pytest

from dysharp.systems.collectives import all_tensor_parallel
from dysharp.testing import conformance
from dysharp.testing.conformance.suite import RULES

ASKED = {rule.name for rule in RULES if rule.scope == "collective"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", all_tensor_parallel())
def test_a_sub_layer_system_conforms(name: str) -> None:
    report = conformance(name)
    assert report.failed == ()
    assert {*report.ran} >= ASKED
