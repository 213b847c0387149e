"""Shared test set-up. The thread limits come before any import of numpy or numba, which read them once."""

import gc
import os
import subprocess
import sys
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ["DYSHARP_FRESH"] = "1"  # no result of an earlier run

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until all tests are collected: a third of that time went into looks at objects that stay

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


_SMALL = "model='deepseek-v2-lite', gpus=2, tokens=4"
_LOADS = "from tests.interpreters.random_loads import random_loads"
# What compiles nearly all kernels, split over two cores. One process compiles all kinds of a level: it compiles their common blocks once.
COMPILES = (
    f"import dysharp; dysharp.run('deepep', {_SMALL}); dysharp.run('moe-hub', {_SMALL}, options={{'moe-hub.totals': 'announced'}}); "
    f"{_LOADS}; from dysharp.engine.burst.run import run_burst; run_burst(random_loads(0)); dysharp.trace('deepep', {_SMALL}); "
    "dysharp.network('0.1', k=2, period=10)",
    f"import dysharp; dysharp.run('dysharp', {_SMALL}, fidelity='packet'); "
    f"dysharp.run('deepep', {_SMALL}, cluster='hw-dgx-h100', direction='bwd', fidelity='packet'); "
    f"{_LOADS}; from dysharp.engine.packet.program import run_packet; run_packet(random_loads(0, packets=True))",
)


_compiling: list[subprocess.Popen[bytes]] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """With several workers, kernels are compiled before the tests, once; else each worker would compile all of them."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    for code in COMPILES:
        command = [sys.executable, "-c", code]
        _compiling.append(subprocess.Popen(command, cwd=config.rootpath, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished() -> None:
    """Workers collect while kernels are compiled, and get their first tests behind both: a core that is done compiling has work."""
    for process in _compiling:
        process.wait()


def pytest_collection_finish() -> None:
    """What has been collected stays, so the garbage collector looks at the objects of tests only."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """At its end Python frees all objects, and some libraries report what it left."""
    gc.unfreeze()


SAMPLE = 3
"""Of the cases of a test with the mark `sampled` one in so many stays in its selection; the others go one further, from quick to slow or from slow to
long."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is in one selection: quick, slow or long."""
    cases: Counter[tuple[str, str]] = Counter()
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("long"):
            further = "long" if item.get_closest_marker("slow") else "slow"
            place = item.nodeid.partition("[")[0], further
            if cases[place] % SAMPLE:
                item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
                item.add_marker(further)
            cases[place] += 1
    both = [item.nodeid for item in items if item.get_closest_marker("slow") and item.get_closest_marker("long")]
    if both:
        raise pytest.UsageError(f"found tests marked slow and long, expected one of both marks: {both[:3]}")
