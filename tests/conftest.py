"""Shared test set-up. The thread limits come before any import of numpy or numba, which read them once."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ["DYSHARP_FRESH"] = "1"  # no result of an earlier run

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is in one selection: quick, slow or long."""
    both = [item.nodeid for item in items if item.get_closest_marker("slow") and item.get_closest_marker("long")]
    if both:
        raise pytest.UsageError(f"found tests marked slow and long, expected one of both marks: {both[:3]}")
