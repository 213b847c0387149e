"""The verb `validate`: input that it refuses."""

from __future__ import annotations

import pytest

from dysharp.api.validation import refit as refit_file
from dysharp.api.validation import validate
from dysharp.errors import ConfigError
from tests.measured.csv_lines import HEADER, line, write


def test_command_errors(tmp_path):
    (tmp_path / "none.csv").write_text(HEADER + "\n")
    with pytest.raises(ConfigError, match=r"none.csv: found a header and no rows, expected rows such as those of docs/measurements.md"):
        validate(tmp_path / "none.csv")
    odd = line("a-3", kind="routing_stat", metric="entropy", unit="bits")
    (tmp_path / "odd.csv").write_text(f"{HEADER}\n{odd}\n{odd.replace('a-3', 'a-4')}\n")
    with pytest.raises(ConfigError, match=r"found no row that is predicted \(a-3 and 1 more: not of a family that is predicted\), expected rows"):
        validate(tmp_path / "odd.csv")
    with pytest.raises(ConfigError, match="hold-out: found 'row'"):
        validate(write(tmp_path), hold_out=["row"])
    with pytest.raises(ConfigError, match="cannot be read"):
        validate(tmp_path / "absent.csv")
    with pytest.raises(ConfigError, match="cannot be written"):
        refit_file(write(tmp_path), tmp_path / "absent" / "fitted.toml")
