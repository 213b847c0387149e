"""Dumps that must be refused, before they are read: values that cannot be, damage, pickles, sizes that lie."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from routing_dumps import HINTS, E, K, b64, choices, document, npy, recorder, torch_save

from dysharp.base.errors import ConfigError
from dysharp.workload.importers import FORMATS, Hints, import_trace, summary


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a: a.__setitem__((5, 2, 1), E), r"layer 2, row 5, column 1: found expert 12, expected -1 to 11"),
        (lambda a: a.__setitem__((5, 2, 1), -2), r"layer 2, row 5, column 1: found expert -2, expected -1 to 11"),
        (lambda a: a.__setitem__((5, 2, 1), a[5, 2, 0]), r"layer 2, row 5, column 1: expert \d+ is in column 0 too, expected distinct"),
    ],
)
def test_wrong_ids_are_named(tmp_path: Path, change: Callable[[NDArray[Any]], None], text: str) -> None:
    ids = choices(8)
    change(ids)
    np.save(tmp_path / "a.npy", ids)
    with pytest.raises(ConfigError, match=rf"a\.npy: {text}"):
        import_trace([tmp_path / "a.npy"], hints=HINTS)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.bool_, "U4", "S3", "M8[s]"])
def test_wrong_types(tmp_path: Path, dtype: Any) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 2), dtype=dtype))
    with pytest.raises(ConfigError, match=r"a\.npy: found .* of shape \(3, 4, 2\), expected integers \[tokens, layers, topk\]"):
        import_trace([tmp_path / "a.npy"], hints=HINTS)


@pytest.mark.parametrize(("value", "text"), [(-1, "-1"), (10**14, "10000"), (np.nan, "nan"), (np.inf, "inf")])
def test_wrong_counts(tmp_path: Path, value: float, text: str) -> None:
    weight = np.ones((2, 4)) if isinstance(value, float) else np.ones((2, 4), dtype=np.int64)
    weight[1, 2] = value
    np.savez(tmp_path / "a.npz", weight=weight)
    with pytest.raises(ConfigError, match=rf"layer 1, expert 2: found count {text}.*expected 0 to"):
        import_trace([tmp_path / "a.npz"], hints=Hints(topk=2))


def test_counts_that_hide_or_take_all_memory(tmp_path: Path) -> None:
    window = np.ones((3, 2, 4), dtype=np.int64)
    window[1, 0, 2] = -1
    np.savez(tmp_path / "a.npz", expert_load_window=window)
    with pytest.raises(ConfigError, match=r"expert_load_window: step 1: layer 0, expert 2: found count -1, expected 0 to"):
        import_trace([tmp_path / "a.npz"], hints=Hints(topk=2))
    np.savez(tmp_path / "b.npz", weight=np.full((1, 1 << 16), 1 << 18))
    with pytest.raises(ConfigError, match=r"drawing 524288 tokens takes 274877906944 bytes, expected at most 4294967296"):
        import_trace([tmp_path / "b.npz"], hints=Hints(topk=1 << 15))
    np.savez(tmp_path / "c.npz", weight=np.full((1, 8), 10**12))
    with pytest.raises(ConfigError, match=r"the counts stand for 4000000000000 tokens, expected at most 524288; --tokens T"):
        import_trace([tmp_path / "c.npz"], hints=Hints(topk=2))
    np.savez(tmp_path / "d.npz", weight=np.full((1, 8), 5e-324))
    assert import_trace([tmp_path / "d.npz"], hints=Hints(topk=2, tokens=8)).trace.n_tokens == 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"choices": [{"routed_experts": "!!!"}]}, "choice 0: routed_experts: malformed base64"),
        ({"choices": [{"routed_experts": b64(b"abc")}]}, "choice 0: routed_experts: damaged or not an .npy file"),
        ({"data": "AAAA", "shape": [1 << 30, 1 << 30, 8], "dtype": "int32"}, "found 3 bytes, expected 36893488147419103232"),
        ({"data": "AAAA", "shape": [1, 1, -3], "dtype": "int8"}, r"found shape \[1, 1, -3\], expected three numbers from 1 to 2147483647: tok"),
        ({"data": "AAAA", "shape": [10**12, 4, 2], "dtype": "int8"}, r"found shape \[1000000000000, 4, 2\], expected three numbers from 1 to"),
        ({"data": "AAAA", "shape": [1, 1, 3], "dtype": "object"}, "found dtype 'object', expected one of uint8"),
        ({"data": "AAAA", "shape": [1, 1, 3], "dtype": ["x"]}, r"found dtype \"\['x'\]\", expected one of uint8"),
        ({"data": "\u00e4", "shape": [1, 1, 3]}, "malformed base85"),
        ({"text": "hello"}, "fits no known format, expected one of vllm, sglang"),
        ([1, 2, 3], "fits no known format"),
    ],
)
def test_wrong_json(tmp_path: Path, value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        import_trace([document(tmp_path / "a.json", value)], hints=HINTS)


def test_malformed_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for body, text in [
        ("[" * 200_000, "nested too deeply|malformed JSON"),
        ('{"a": NaN}', "found NaN, expected a number"),
        ('{"a": ', r"malformed JSON: .* \(at line 1, column 7\)"),
        ('{"a": ' + "9" * 5000 + "}", "malformed JSON: Exceeds the limit"),
    ]:
        path.write_text(body)
        with pytest.raises(ConfigError, match=text):
            import_trace([path], hints=HINTS)
    path.write_bytes(b'{"\xff": 1}')
    with pytest.raises(ConfigError, match="column 3: found byte 0xff, expected UTF-8"):
        import_trace([path], hints=HINTS)


def test_torch_is_needed_for_its_files_only(tmp_path: Path) -> None:
    torch_save(tmp_path / "a.pt", {"topk_idx": choices(4)[:, 0]})
    np.savez(tmp_path / "a.npz", topk_idx=choices(4)[:, 0])
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom dysharp.base.errors import MissingExtra\n"
        "from dysharp.workload.importers import FORMATS, Hints, import_trace, summary\nprint(*map(summary, FORMATS), sep='\\n')\n"
        "print(import_trace([sys.argv[1]], hints=Hints(experts=12)).format)\n"
        "try: import_trace([sys.argv[2]], hints=Hints(experts=12))\nexcept MissingExtra as error: print(error)\n"
    )
    args = [sys.executable, "-c", code, str(tmp_path / "a.npz"), str(tmp_path / "a.pt")]
    lines = subprocess.run(args, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert lines[len(FORMATS)] == "deepep"
    assert "a.pt: reading a file of torch.save needs the extra" in lines[-1]


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        import_trace([tmp_path / "none.npy"])
    with pytest.raises(ConfigError, match="Is a directory"):
        import_trace([tmp_path])
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"found none of \.npy, \.npz, torch, JSON and \.csv"):
        import_trace([tmp_path / "a.txt"])
    with pytest.raises(ConfigError, match=r"unknown format 'vlm'; did you mean"):
        import_trace([tmp_path / "a.txt"], "vlm")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        import_trace([tmp_path / "pipe.json"])
    assert all(summary(name) for name in FORMATS)


class Evil:
    """Its pickle writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_a_bare_pickle(tmp_path: Path) -> None:
    for name in ("a.pt", "a.npy", "a.npz", "a.json", "a.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
        with pytest.raises(ConfigError, match="found a pickle, which can run code"):
            import_trace([tmp_path / name], hints=HINTS)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_inside_an_array(tmp_path: Path) -> None:
    evil = np.empty((2, 2, 2), dtype=object)
    evil[0, 0, 0] = Evil(tmp_path / "ran")
    np.save(tmp_path / "a.npy", evil, allow_pickle=True)
    np.savez(tmp_path / "a.npz", routed_experts=evil)
    document(tmp_path / "a.json", {"choices": [{"routed_experts": b64((tmp_path / "a.npy").read_bytes())}]})
    for name in ("a.npy", "a.npz", "a.json"):
        with pytest.raises(ConfigError, match="holds pickled objects, expected plain numbers"):
            import_trace([tmp_path / name], hints=HINTS)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_inside_a_torch_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(2, 3), "x": Evil(tmp_path / "ran")}, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match=r"a\.pt: data\.pkl: byte \d+: found (io|_io|builtins|__builtin__)\.open, which is code"):
        import_trace([tmp_path / "a.pt"], hints=HINTS)
    torch.save({"weight": torch.ones(2, 3), "x": Evil(tmp_path / "ran")}, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ConfigError, match="found a pickle, which can run code"):
        import_trace([tmp_path / "b.pt"], hints=HINTS)
    assert not (tmp_path / "ran").exists()


def rezipped(path: Path, out: Path, change: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", compression) as new:
        for info in old.infolist():
            name = info.filename.partition("/")[2]
            new.writestr(info.filename, change.get(name, old.read(info)))
    return out


def test_torch_files_that_ask_for_memory(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.zeros(1).expand(1 << 40)}, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match=r"weight: tensors of 4398046511104 bytes, expected at most \d+; --limit"):
        import_trace([tmp_path / "a.pt"], hints=Hints(topk=2))
    torch.save({"weight": torch.zeros(4, 8)}, tmp_path / "b.pt")
    packed = rezipped(tmp_path / "b.pt", tmp_path / "c.pt", {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ConfigError, match=r"is compressed, expected it stored"):
        import_trace([packed], hints=Hints(topk=2))
    with pytest.raises(ConfigError, match=r"members of \d+ bytes, expected at most 64"):
        import_trace([tmp_path / "b.pt"], hints=Hints(topk=2, max_bytes=64))
    huge = pickle.PROTO + b"\x02" + b"c__builtin__\nbytearray\n" + pickle.BININT + struct.pack("<i", 1 << 30) + pickle.TUPLE1 + pickle.REDUCE + b"."
    with pytest.raises(ConfigError, match=r"found __builtin__\.bytearray, which is code"):
        import_trace([rezipped(tmp_path / "b.pt", tmp_path / "d.pt", {"data.pkl": huge})], hints=Hints(topk=2))
    # Ten lists of ten times the same list each: small on disk, 10^10 values when walked.
    bomb: Any = [1.5]
    for _ in range(9):
        bomb = [bomb] * 10
    torch.save({"weight": torch.zeros(4, 8), "x": bomb}, tmp_path / "e.pt")
    with pytest.raises(ConfigError, match=r"expected a flat dump"):
        import_trace([tmp_path / "e.pt"], hints=Hints(topk=2))
    for damage in (b"", b"garbage", pickle.dumps({"a": 1}, protocol=4)):
        path = rezipped(tmp_path / "b.pt", tmp_path / "f.pt", {"data.pkl": damage})
        with pytest.raises(ConfigError, match=r"f\.pt: "):
            import_trace([path], hints=Hints(topk=2))
    cut = (tmp_path / "b.pt").read_bytes()
    for n in (10, 200, len(cut) - 30):
        (tmp_path / "g.pt").write_bytes(cut[:n])
        with pytest.raises(ConfigError, match=r"g\.pt: "):
            import_trace([tmp_path / "g.pt"], hints=Hints(topk=2))
    short = rezipped(tmp_path / "b.pt", tmp_path / "h.pt", {"data/0": b"1234"})
    with pytest.raises(ConfigError, match=r"h\.pt: "):
        import_trace([short], hints=Hints(topk=2))


def claimed(shape: str, dtype: str = "<i8") -> bytes:
    """An `.npy` file whose header says one thing and which holds 16 bytes."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (f"({1 << 40}, 4, 8)", "281474976710656 bytes, expected at most"),
        ("(1000, 4, 8)", "the file holds 16"),
        ("(-1, 4, 8)", "expected at most 4 axes, none of negative length"),
        ("(-5,)", r"found shape \(-5,\), expected at most 4 axes, none of negative length"),
        (f"({1 << 70}, 4, 8)", "bytes, expected at most"),
        ("(1, 2, 1, 1, 1)", "expected at most 4 axes"),
        ("open('ran')", "damaged or not an .npy file"),
    ],
)
def test_headers_that_lie(tmp_path: Path, shape: str, text: str) -> None:
    (tmp_path / "a.npy").write_bytes(claimed(shape))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("routed_experts.npy", claimed(shape))
    document(tmp_path / "a.json", {"choices": [{"routed_experts": b64(claimed(shape))}]})
    for name in ("a.npy", "a.npz", "a.json"):
        with pytest.raises(ConfigError, match=text.replace("an .npy", r"an \.np[yz]")):
            import_trace([tmp_path / name], hints=HINTS)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """1 GiB of zeros in 1 MB: read in a process that may not take that much."""
    path = tmp_path / "bomb.npz"
    n_bytes = 1 << 30
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("routed_experts.npy", "w") as out:
        out.write(claimed(f"({n_bytes // 64}, 8, 1)")[:-16])
        for _ in range(n_bytes >> 24):
            out.write(bytes(1 << 24))
    code = (
        "import resource, sys\nfrom dysharp.base.errors import ConfigError\nfrom dysharp.workload.importers import Hints, import_trace\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))\n"
        "try: import_trace([sys.argv[1]], hints=Hints(max_bytes=1 << 29))\nexcept ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120, check=True)
    assert "1073741824 bytes, expected at most 536870912" in done.stdout


def test_the_limit_can_be_moved(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", choices(100))
    with pytest.raises(ConfigError, match=r"a\.npy: 9600 bytes, expected at most 9000"):
        import_trace([tmp_path / "a.npy"], hints=Hints(experts=E, max_bytes=9000))
    document(tmp_path / "a.json", {"choices": [{"routed_experts": b64(npy(choices(100)))}]})
    with pytest.raises(ConfigError, match=r"a\.json: \d+ bytes, expected at most 1250; --limit raises it"):
        import_trace([tmp_path / "a.json"], hints=Hints(experts=E, max_bytes=10_000))


def test_damaged_bytes_end_in_one_line(tmp_path: Path) -> None:
    """Every kind of file with single bytes changed: a trace or a ConfigError, nothing else."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(9)
    np.save(tmp_path / "a.npy", choices(4).astype(np.int16))
    np.savez_compressed(tmp_path / "a.npz", topk_idx=choices(4)[:, 0], topk_weights=np.ones((4, K)))
    document(tmp_path / "a.json", {"choices": [{"routed_experts": b64(npy(choices(4)))}]})
    torch_save(tmp_path / "a.pt", recorder([3])[0])
    refused = 0
    for name in ("a.npy", "a.npz", "a.json", "a.pt"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(150):
            data = bytearray(whole)
            for at in rng.integers(0, len(data), rng.integers(1, 4)):
                data[at] = rng.integers(0, 256)
            (tmp_path / f"broken_{name}").write_bytes(data)
            try:
                import_trace([tmp_path / f"broken_{name}"], hints=Hints(experts=E, topk=K))
            except ConfigError as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused > 200


def test_a_million_layers_take_no_square_of_their_number(tmp_path: Path) -> None:
    """Found by `bench/attack.py`: minutes for 2 MB."""
    np.savez(tmp_path / "wide.npz", routed_experts=np.zeros((1, 1 << 17, 2), np.int8))
    begun = time.process_time()
    with pytest.raises(ConfigError, match="no layer has a choice"):
        import_trace([tmp_path / "wide.npz"], hints=Hints(experts=8))
    assert time.process_time() - begun < 2
