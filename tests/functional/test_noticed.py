"""Ops that are deleted, doubled or redirected are noticed: by the verifier, the watchdog, the record, or a wrong tensor."""

from __future__ import annotations

import pytest

from dysharp.systems import all_systems
from dysharp.testing.conformance.broken import _broken_ops_are_noticed
from dysharp.testing.conformance.case import SystemCase

SYSTEMS = all_systems()


@pytest.mark.sampled
@pytest.mark.parametrize("samples", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("system", SYSTEMS)
def test_broken_ops(system, samples):
    assert list(_broken_ops_are_noticed(SystemCase(SYSTEMS[system]), samples)) == []
