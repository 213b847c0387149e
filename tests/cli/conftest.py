"""The command line in this process: exit code, stdout, stderr."""

from collections.abc import Callable
from dataclasses import dataclass

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
