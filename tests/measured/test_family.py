"""A family is one file: registered, it shows up in `validate` with both of its answers, in the bars or beyond them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from dysharp.api.validation import validate
from dysharp.base.errors import ConfigError
from dysharp.measured import family as register
from dysharp.measured.family import Case, all_families, families_in_bars, family, family_of, get_family, judges_of
from dysharp.measured.measurements import Measurement
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import ep_line, line, read, write

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements.md"
FILE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
"""The family of the page on adding one."""
PROGRAM = """

def program_us(case: PeerCopy, constants: Constants) -> float:
    return case.n_bytes / 450e3


@family("""
COPY = {"kind": "peer_copy", "system": "torch copy", "config": {"bytes": 450_000_000}}
LINES = line("c-1", value=800, **COPY), line("c-2", metric="bandwidth", value=400, unit="GB/s", **COPY)
"""A time and a rate; the Program takes 1000 us."""
FRACTION = fitted_values()["link.fraction"]
CLOSED_OVER_PROGRAM = 50 * ((1 / FRACTION - 1) + (FRACTION - 1))
"""Percent: the median of a time and of a rate."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    all_families()
    monkeypatch.setattr(register, "_REGISTRY", dict(register._REGISTRY))


def import_family(folder: Path, **changes: str) -> None:
    """Write the page's family with a Program to a file, with texts replaced, and import it."""
    text = FILE.replace("\n\n@family(", PROGRAM).replace("    closed_us=closed_us,", "    closed_us=closed_us,\n    program_us=program_us,")
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = folder / "peer_copy.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("peer_copy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_copy"] = module
    spec.loader.exec_module(module)


@pytest.mark.usefixtures("registry")
def test_a_new_family_is_one_file(tmp_path: Path) -> None:
    import_family(tmp_path)
    done = validate(write(tmp_path, *LINES, line("g")))
    assert [(row["family"], row["by"], row["n"]) for row in done.families] == [("dense-gemm", "rate form", 1), ("peer-copy", "program", 2)]
    assert done.points[:2] == (("peer-copy", 800.0, 1000.0), ("peer-copy", 1125.0, 1000.0))
    (form,) = done.forms
    assert (form["family"], form["n"]) == ("peer-copy", 2)
    assert form["closed_over_program"] == pytest.approx(CLOSED_OVER_PROGRAM)
    assert done.beyond == []
    assert done.overall["n_rows"] == 3


@pytest.mark.usefixtures("registry")
def test_a_family_beyond_the_bars_differs_by_its_flag(tmp_path: Path) -> None:
    import_family(tmp_path, **{"in_bars=True": "in_bars=False"})
    done = validate(write(tmp_path, *LINES, line("g")))
    assert [row["family"] for row in done.families] == ["dense-gemm"]
    assert done.overall["n_rows"] == 1
    whole = done.beyond[0]
    assert (whole["family"], whole["system"], whole["by"], whole["n"]) == ("peer-copy", "all", "program", 2)
    assert whole["median_ape"] == pytest.approx((25 + 12.5) / 2)
    assert whole["closed_median_ape"] is not None


@pytest.mark.usefixtures("registry")
def test_a_measurement_is_of_one_family_at_most(tmp_path: Path) -> None:
    import_family(tmp_path)

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
    import_family(tmp_path)
    import_family(tmp_path, **{'"peer-copy"': '"other-copy"'})
    with pytest.raises(ConfigError, match="system 'my-system': found families other-copy and peer-copy for its dispatch"):
        judges_of("my-system")


def test_a_family_of_several_domains_is_none_of_the_bars() -> None:
    with pytest.raises(ConfigError, match="family 'far': found between='bars' and in_bars=True, expected in_bars=False"):
        family("far", belongs=lambda m: False, closed_us=lambda case, gpu, constants: case.work, between="bars")(lambda m: Case(gpu="h100-sxm"))


@pytest.mark.parametrize(("in_bars", "text"), [(True, "the fit moves closed forms"), (False, "closed_us or program_us")])
def test_a_family_has_an_answer(in_bars: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=f"family 'mute': found no closed_us, expected .*{text}"):
        family("mute", belongs=lambda m: False, in_bars=in_bars)(lambda m: None)


def test_names_are_those_of_the_files() -> None:
    assert families_in_bars() == [
        "deepep-dispatch", "deepep-combine", "deepep-ll", "trtllm-a2a", "nccl", "dense-gemm", "grouped-gemm", "fused-layer", "layer",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r'family .ncl.: unknown; did you mean "nccl"'):
        get_family("ncl")
    named = family_of(read(ep_line("a", 16))[0])
    assert named is get_family("deepep-dispatch")
    assert family_of(read(line(kind="routing_stat", metric="entropy", unit="bits"))[0]) is None
