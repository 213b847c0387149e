"""The command line in this process: exit code, stdout, stderr; and the script that measures a GPU, as a module."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from dysharp.cli import main


@dataclass(frozen=True)
class Result:
    """What one command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def dysharp(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`dysharp("run", "deepep")`."""

    def call(*args: str) -> Result:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        streams = capsys.readouterr()
        code = stop.value.code
        assert isinstance(code, int)
        return Result(code, streams.out, streams.err)

    return call


@pytest.fixture(scope="session")
def measure() -> ModuleType:
    """`examples/measure_gpu.py`."""
    path = Path(__file__).resolve().parents[2] / "examples" / "measure_gpu.py"
    spec = importlib.util.spec_from_file_location("measure_gpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_gpu"] = module
    spec.loader.exec_module(module)
    return module
