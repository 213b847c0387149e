"""Without a cache in the home of the user, kernels and results are kept in a folder for temporary files that nobody else can write to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners of files")
CODE = "from dysharp.base.files import cache_folder; f = cache_folder('rows'); f.mkdir(exist_ok=True); print(f, oct(f.parent.stat().st_mode & 0o777))"


def run(temporary: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CACHE_HOME": "/dev/null", "TMPDIR": str(temporary)}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)


def test_processes_share_a_private_folder(tmp_path: Path) -> None:
    own = f"{tmp_path}/dysharp-{os.getuid()}/rows 0o700\n"
    assert [run(tmp_path, "-c", CODE).stdout for _ in range(2)] == [own, own]


@pytest.mark.parametrize("made", ["link", "file", "open to others"])
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, made: str) -> None:
    theirs, other = tmp_path / f"dysharp-{os.getuid()}", tmp_path / "other"
    other.mkdir(mode=0o700)
    if made == "link":
        theirs.symlink_to(other)
    elif made == "file":
        theirs.write_text("")
    else:
        theirs.mkdir()
        theirs.chmod(0o777)
    folder, mode = run(tmp_path, "-c", CODE).stdout.split()
    assert Path(folder).parent not in (theirs, other)
    assert mode == "0o700"
    assert not Path(folder).exists()  # it goes with its process
    assert list(other.iterdir()) == []


def test_the_user_is_told_once(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "dysharp", "query", "select 1", "--reproduced")
    assert done.returncode == 2
    told = f"dysharp: warning: /dev/null/dysharp cannot be written: kernels and results are kept in {tmp_path}/dysharp-{os.getuid()}\n"
    assert done.stderr.count("warning") == 1
    assert done.stderr.endswith(told)
