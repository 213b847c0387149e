"""Loaders on damaged files: a value or ConfigError, never another exception, never much memory."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.specs import Model
from dysharp.workload import make_routing
from dysharp.workload.counts import read_counts
from dysharp.workload.npz import read_npz
from dysharp.workload.placement import _from_file
from dysharp.workload.traces import load_trace

FUZZ = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _good_npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(
        file,
        expert=np.array([[[0, 1], [2, 3], [1, 3]]], dtype=np.int16),
        weight=np.ones((1, 3, 2), dtype=np.float16),
        layer_id=np.array([3]),
        seq_len=np.array([2, 1]),
        meta=np.array('{"E": 4}'),
    )
    return file.getvalue()


GOOD_NPZ = _good_npz()
GOOD_CSV = b"model,layer,expert,count\nm,0,0,4\nm,0,1,5\nm,1,0,6\nm,1,1,7\n"
GOOD_JSON = b'{"gpus": [[0, 1], [2, 3]]}'
GOOD_TOML = b"gpus = [[0, 1], [2, 3]]\n"


def _damaged(good: bytes) -> st.SearchStrategy[bytes]:
    def flip(positions: list[tuple[int, int]]) -> bytes:
        raw = bytearray(good)
        for position, value in positions:
            raw[position] ^= value
        return bytes(raw)

    spot = st.tuples(st.integers(0, len(good) - 1), st.integers(1, 255))
    return st.one_of(
        st.integers(0, len(good) - 1).map(lambda n: good[:n]),
        st.lists(spot, min_size=1, max_size=4).map(flip),
        st.binary(max_size=200),
        st.tuples(st.integers(0, len(good)), st.binary(max_size=30)).map(
            lambda cut: good[: cut[0]] + cut[1] + good[cut[0] :]
        ),
    )


def _loads_or_refuses(path: Path, raw: bytes, load: Callable[[], object]) -> None:
    path.write_bytes(raw)
    try:
        load()
    except ConfigError as error:
        assert path.name in str(error)
        assert "\n" not in str(error)


@given(_damaged(GOOD_NPZ))
@FUZZ
def test_traces(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "fuzz.npz"
    _loads_or_refuses(path, raw, lambda: load_trace(str(path)))


def _npz_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return file.getvalue()


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@given(
    st.text(
        alphabet="{}[]()'\":,<>=|i248fFOUVTrue None'descrfortran_ordershape0123456789-eL\n#\\", max_size=80
    )
)
@FUZZ
def test_headers(tmp_path: Path, header: str) -> None:
    path = tmp_path / "fuzz.npz"
    _loads_or_refuses(path, _npz_of({"expert.npy": _npy(header)}), lambda: load_trace(str(path)))


@given(_damaged(_npy("{'descr': '<i2', 'fortran_order': False, 'shape': (1, 2, 2), }", b"\0\0\1\0\1\0\2\0")))
@FUZZ
def test_members(tmp_path: Path, raw: bytes) -> None:
    """With an intact zip around it, the damage reaches the array reader."""
    path = tmp_path / "fuzz.npz"
    meta = io.BytesIO()
    np.save(meta, np.array('{"E": 4}'))
    archive = _npz_of({"expert.npy": raw, "meta.npy": meta.getvalue()})
    _loads_or_refuses(path, archive, lambda: load_trace(str(path)))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"a.npy": _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }")},
            r"array 'a': 8796093022208 bytes, expected at most 4294967296",
        ),
        (
            {"a.npy": _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000,), }")},
            r"array 'a': header says shape \(1000,\) of int64 = 8000 bytes, the file holds 0",
        ),
        (
            {"a.npy": _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }")},
            r"holds pickled objects",
        ),
        (
            {"a.npy": _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }")},
            r"found shape \(-1,\), expected",
        ),
        ({"evil.pkl": b"cos\nsystem\n"}, r"member 'evil.pkl', expected only .npy members"),
        ({f"{i}.npy": b"" for i in range(65)}, r"65 members, expected at most 64"),
        ({"a.npy": b"no array"}, r"damaged or not an .npz file"),
    ],
)
def test_refused_members(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(_npz_of(members))
    with pytest.raises(ConfigError, match=message):
        read_npz(path, ["a"])


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(_npz_of({"a.npy": b"x"}, zipfile.ZIP_BZIP2))
    with pytest.raises(ConfigError, match=r"member 'a.npy': unknown compression 12"):
        read_npz(path, ["a"])


def test_missing_and_odd_paths(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file"):
        read_npz(tmp_path / "none.npz", ["a"])
    with pytest.raises(ConfigError, match=r"no such file or packaged trace"):
        load_trace("a\0b")
    with pytest.raises(ConfigError, match=r"no such file or packaged trace"):
        load_trace("x" * 5000)
    with pytest.raises(ConfigError, match=r"no such file or packaged trace"):
        load_trace(str(tmp_path))


@given(_damaged(GOOD_CSV))
@FUZZ
def test_counts(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "fuzz.csv"
    _loads_or_refuses(path, raw, lambda: read_counts(path))


@given(_damaged(GOOD_JSON), _damaged(GOOD_TOML))
@FUZZ
def test_placements(tmp_path: Path, as_json: bytes, as_toml: bytes) -> None:
    for name, raw in (("fuzz.json", as_json), ("fuzz.toml", as_toml)):
        path = tmp_path / name
        _loads_or_refuses(path, raw, lambda path=path: _from_file(path, 4, 2))


@given(_damaged(GOOD_NPZ))
@settings(FUZZ, max_examples=60)
def test_routing_from_damaged_traces(tmp_path: Path, make_model: Callable[..., Model], raw: bytes) -> None:
    path = tmp_path / "fuzz.npz"
    model = make_model(4, 2)

    def load() -> None:
        routing = make_routing(f"trace:{path}", model, 2, 4)
        assert routing.expert.min() >= 0
        assert routing.expert.max() < 4

    path.write_bytes(raw)
    try:
        load()
    except ConfigError as error:
        assert "\n" not in str(error)
