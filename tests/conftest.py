"""Shared test set-up. The thread limits come before any import of numpy or numba, which read them once."""

import os
import subprocess
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ["DYSHARP_FRESH"] = "1"  # no result of an earlier run

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


_SMALL = "model='deepseek-v2-lite', gpus=2, tokens=4"
COMPILES = (  # what compiles most of the kernels, split over two cores
    f"import dysharp; dysharp.run('deepep', {_SMALL}); dysharp.run('moe-hub', {_SMALL}, options={{'moe-hub.totals': 'announced'}})",
    f"import dysharp; dysharp.run('dysharp', {_SMALL}, fidelity='packet'); dysharp.network('0.1', k=2, period=10)",
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """With several workers, kernels are compiled before the tests, once; else each worker would compile all of them."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for code in COMPILES]
    for process in started:
        process.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is in one selection: quick, slow or long."""
    both = [item.nodeid for item in items if item.get_closest_marker("slow") and item.get_closest_marker("long")]
    if both:
        raise pytest.UsageError(f"found tests marked slow and long, expected one of both marks: {both[:3]}")
