"""A family is one file: registered, it shows up in `validate` with both of its answers, in the bars or beyond them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from dysharp.api.validation import validate
from dysharp.errors import ConfigError
from dysharp.measured import family as register
from dysharp.measured.family import all_families, families_in_bars, family, family_of, get_family, judges_of
from dysharp.measured.measurements import Measurement
from tests.measured.csv_lines import ep_line, line, read, write

FILE = '''
"""A measured family in one file: copies from one GPU to the next."""

from dataclasses import dataclass

from dysharp.measured.config_json import number
from dysharp.measured.family import Case, Level, family
from dysharp.measured.scope import gpu_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCase(Case):
    n_bytes: float


def closed_us(case, gpu, constants):
    return case.n_bytes / (1e3 * gpu.link_GBps)


def program_us(case, constants):
    return 1.25 * case.n_bytes / 450e3


@family("peer-copy", belongs=lambda m: m.kind == "peer_copy", closed_us=closed_us, program_us=program_us,
        in_bars={in_bars}, level=Level.LINK, systems=("toy",), parts=("dispatch",))
def case(m):
    n_bytes = number(m, "bytes")
    return CopyCase(gpu=gpu_of(m), n_bytes=n_bytes, work=n_bytes / 1e3 if m.unit == "GB/s" else 0.0, shape="copy")
'''
COPY = {"kind": "peer_copy", "system": "torch copy", "config": {"bytes": 450_000_000}}
LINES = line("c-1", value=1000, **COPY), line("c-2", metric="bandwidth", value=400, unit="GB/s", **COPY)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    all_families()
    monkeypatch.setattr(register, "_REGISTRY", dict(register._REGISTRY))


def import_family(folder: Path, *, in_bars: bool) -> None:
    path = folder / "peer_copy.py"
    path.write_text(FILE.format(in_bars=in_bars))
    spec = importlib.util.spec_from_file_location("peer_copy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_copy"] = module
    spec.loader.exec_module(module)


@pytest.mark.usefixtures("registry")
def test_a_new_family_is_one_file(tmp_path: Path) -> None:
    import_family(tmp_path, in_bars=True)
    done = validate(write(tmp_path, *LINES, line("g")))
    assert [(row["family"], row["by"], row["n"]) for row in done.families] == [("dense-gemm", "rate form", 1), ("peer-copy", "program", 2)]
    assert done.points[:2] == (("peer-copy", 1000.0, 1250.0), ("peer-copy", 1125.0, 1250.0))
    (form,) = done.forms
    assert (form["family"], form["n"], form["closed_median_ape"]) == ("peer-copy", 2, pytest.approx(6.25))
    assert done.beyond == []
    assert done.overall["n_rows"] == 3


@pytest.mark.usefixtures("registry")
def test_a_family_beyond_the_bars_differs_by_its_flag(tmp_path: Path) -> None:
    import_family(tmp_path, in_bars=False)
    done = validate(write(tmp_path, *LINES, line("g")))
    assert [row["family"] for row in done.families] == ["dense-gemm"]
    assert done.overall["n_rows"] == 1
    whole = done.beyond[0]
    assert (whole["family"], whole["system"], whole["by"], whole["n"]) == ("peer-copy", "all", "program", 2)
    assert (whole["median_ape"], whole["closed_median_ape"]) == (pytest.approx(18.0556, rel=1e-4), pytest.approx(6.25))


@pytest.mark.usefixtures("registry")
def test_a_measurement_is_of_one_family_at_most(tmp_path: Path) -> None:
    import_family(tmp_path, in_bars=True)

    @family("twin", belongs=lambda m: m.kind == "peer_copy", closed_us=lambda case, gpu, constants: case.n_bytes)
    def case(m: Measurement):  # pragma: no cover
        raise AssertionError

    with pytest.raises(ConfigError, match="measurement 'c-1': found families peer-copy and twin, expected one"):
        family_of(read(LINES[0])[0])


@pytest.mark.usefixtures("registry")
def test_a_part_of_a_system_has_one_judge(tmp_path: Path) -> None:
    assert {part: judge.name for part, judge in judges_of("deepep").items()} == {
        "dispatch": "deepep-dispatch", "combine": "deepep-combine", "gemm1": "grouped-gemm", "gemm2": "grouped-gemm", "sum": "layer",
    }  # fmt: skip
    import_family(tmp_path, in_bars=True)
    path = tmp_path / "peer_copy.py"
    exec(compile(path.read_text().replace('"peer-copy"', '"other-copy"'), str(path), "exec"), {"__name__": "peer_copy"})
    with pytest.raises(ConfigError, match="system 'toy': found families other-copy and peer-copy for its dispatch"):
        judges_of("toy")


@pytest.mark.parametrize(("in_bars", "text"), [(True, "the fit moves closed forms"), (False, "closed_us or program_us")])
def test_a_family_has_an_answer(in_bars: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=f"family 'mute': found no closed_us, expected .*{text}"):
        family("mute", belongs=lambda m: False, in_bars=in_bars)(lambda m: None)


def test_names_are_those_of_the_files() -> None:
    assert families_in_bars() == [
        "deepep-dispatch", "deepep-combine", "deepep-ll", "trtllm-a2a", "nccl", "dense-gemm", "grouped-gemm", "fused-layer", "layer",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match='family .ncl.: unknown; did you mean "nccl"'):
        get_family("ncl")
    named = family_of(read(ep_line("a", 16))[0])
    assert named is get_family("deepep-dispatch")
    assert family_of(read(line(kind="routing_stat", metric="entropy", unit="bits"))[0]) is None
