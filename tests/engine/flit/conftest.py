"""Short measurements for the tests of the network."""

from __future__ import annotations

import pytest

from dysharp.engine.flit.network import Protocol


@pytest.fixture
def short() -> Protocol:
    """A fifth of a second on a small network."""
    return Protocol(period=400)
