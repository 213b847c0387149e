"""A damaged or full kernel cache costs a compilation, never a run, and a compilation is announced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dysharp.engine.compiling import on_compile
from dysharp.engine.kernel import kernel


def double(x):
    return 2 * x[0]


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, with the one kernel in it."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    assert result() == 42
    assert not compiled()
    return tmp_path / "cache"


def result() -> int:
    """What a new process would get: a new dispatcher has nothing in memory."""
    return int(kernel(double)(np.array([21])))


def compiled() -> bool:
    begun: list[int] = []
    with on_compile(begun.append):
        assert result() == 42
    assert begun[:1] in ([], [0])
    return bool(begun)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(bytes(range(256)) * 4),
        one_bit,
        to_folder,
        lambda path: path.unlink(),
    ],
    ids=["empty", "cut", "random", "one bit", "folder", "missing"],
)
def test_damage_costs_one_compilation(cached: Path, ending: str, damage: Callable[[Path], object]) -> None:
    (file,) = cached.rglob(f"*.{ending}")
    damage(file)
    assert compiled()
    assert not compiled()


def test_a_full_disk_costs_the_cache_only(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(cached)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.os.replace", full)
    assert compiled()
    assert compiled()
