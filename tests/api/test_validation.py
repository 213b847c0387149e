"""The verb `validate`: input that it refuses, and which rows a cluster file is judged on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.api.validation import refit as refit_file
from dysharp.api.validation import validate
from dysharp.base.errors import ConfigError
from tests.measured.csv_lines import HEADER, ep_line, line, write


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


OWN = """base = "{base}"
name = "own"
source = "our machine"
{more}
[constants]
"internode.notify_us" = 15.0
"""
NODES = {"ep": 16, "nodes": 2, "proto": "P3", "experts": 64}


@pytest.mark.parametrize(
    ("base", "more", "why"),
    [
        ("hw-dgx-h100-x2", "", ""),
        ("hw-dgx-h100", "", "more than one NVLink domain, and the cluster file has no [scale_out]"),
        (
            "hw-dgx-h100-x2",
            "[scale_out]\ndomain_gpus = 8\nnic_GBps = 23.5\nlatency_us = 8.0",
            "more than one NVLink domain, and [scale_out] has nic_GBps 23.5 (measured 47): predictions know the NICs of the measured nodes only",
        ),
    ],
)
def test_rows_between_domains_of_a_cluster_file(tmp_path: Path, base: str, more: str, why: str) -> None:
    notify = ep_line("n-1", 128, **NODES).replace(",latency,", ",latency_notify,").replace("8xH100", "our nodes, IB")
    data, cluster = write(tmp_path, line(), notify), tmp_path / "own.toml"
    cluster.write_text(OWN.format(base=base, more=more))
    between = validate(data, cluster=cluster).rows[1]
    packaged = validate(data, cluster=base).rows[1]
    assert between["note"] == why
    if why:
        assert between["predicted"] is None
    else:
        assert between["family"] == "deepep-notify-internode"
        assert between["hardware"] == "H100: our nodes, IB", "the text says that it is several domains"
        assert between["predicted"] > packaged["predicted"] + 9, "by the file's own constants"
