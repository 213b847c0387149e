"""Shared test set-up. The thread limits come before any import of numpy or numba, which read them once."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ["DYSHARP_FRESH"] = "1"  # no result of an earlier run

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
