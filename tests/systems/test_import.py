"""`--import FILE`: a system of one's own without a package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.systems.registry import _REGISTRY, import_systems
from dysharp.testing.conformance.__main__ import main

TEXT = '''"""Copies that overlap."""
from dataclasses import dataclass
from dysharp.program import Discipline
from dysharp.systems import Costs, Facts, Moves, system
from dysharp.systems.building import fused

@dataclass(frozen=True)
class Options:
    pass

@system("own", Facts(source="a test", options=Options, moves=Moves("one_copy_per_gpu"), costs=Costs(permutes=0, fused=True, drops="nothing")))
def plan(layer, options):
    """Own."""
    layer.dispatch_puts(by_rows=True)
    fused(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row)
'''
LAYER = "--model S-8 --gpus 4 --tokens 16 --routing uniform"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    """The file, whose system is gone when the test ends."""
    file = tmp_path / f"own_{tmp_path.name}.py"
    file.write_text(TEXT)
    yield str(file)
    _REGISTRY.pop("own", None)


@pytest.mark.parametrize(
    "command",
    [f"run own {LAYER}", f"compare --systems own,deepep {LAYER}", "step deepseek-v2-lite --systems own --layout ep=4,gpus=4,gbs=4 --quick"],
)
def test_commands_take_a_file(command: str, own: str) -> None:
    done = CliRunner().invoke(cli, [*command.split(), "--import", own, "--import", own], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "own" in done.stdout


def test_conformance_takes_a_file(own: str) -> None:
    done = CliRunner().invoke(main, ["own", "--import", own, "--rule", "gemm_tiles"])
    assert done.stdout.startswith("own conforms: "), done.output


def test_what_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ConfigError, match="found ZeroDivisionError: division by zero, expected a file or module"):
            import_systems(str(bad))
    with pytest.raises(ConfigError, match=r"import .nosuch.: found no module: No module named 'nosuch', expected a file or module"):
        import_systems("nosuch")
    with pytest.raises(ConfigError, match="found FileNotFoundError"):
        import_systems(str(tmp_path / "absent.py"))
    bad.write_text(TEXT.replace('"one_copy_per_gpu"', '"one_copy"'))
    with pytest.raises(ConfigError, match=r"^import .*: system \"own\": found moves.sent 'one_copy', expected a function or one of [a-z_, ]*$"):
        import_systems(str(bad))


def test_two_files_of_one_name_are_two_files(own: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    second = tmp_path / "sub" / Path(own).name
    second.write_text(TEXT.replace('"own"', '"own-too"'))
    import_systems(own)
    import_systems(str(second))
    assert {"own", "own-too"} <= set(_REGISTRY)
    del _REGISTRY["own-too"]


@pytest.mark.parametrize("name", ["deepep", "nccl-ring"])
def test_a_file_does_not_hide_a_packaged_system(name: str, tmp_path: Path) -> None:
    """In a fresh process, where no packaged system is imported yet."""
    file = tmp_path / "thief.py"
    collective = 'from dysharp.systems.collectives import collective\n@collective("nccl-ring", operations=())\ndef plan(*asked):\n    pass\n'
    file.write_text(TEXT.replace('"own"', '"deepep"') if name == "deepep" else collective)
    script = f"from dysharp.systems.registry import import_systems; import_systems({str(file)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"found it in dysharp.systems.{'deepep' if name == 'deepep' else 'collectives.nccl'} and in imported.thief" in done.stderr
