"""The verb `validate`: input that it refuses, and which rows a cluster file is judged on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.api.calibration import calibrate
from dysharp.api.validation import refit as refit_file
from dysharp.api.validation import validate
from dysharp.base.errors import ConfigError
from tests.measured.csv_lines import GEMM, HEADER, ep_line, line, write


def test_command_errors(tmp_path):
    (tmp_path / "none.csv").write_text(HEADER + "\n")
    with pytest.raises(ConfigError, match=r"none.csv: found a header and no rows, expected rows such as those of docs/measurements.md"):
        validate(tmp_path / "none.csv")
    odd = line("a-3", kind="routing_stat", metric="entropy", unit="bits")
    (tmp_path / "odd.csv").write_text(f"{HEADER}\n{odd}\n{odd.replace('a-3', 'a-4')}\n")
    with pytest.raises(ConfigError, match=r"found no row that is predicted \(a-3 and 1 more: not of a family that is predicted\), expected rows"):
        validate(tmp_path / "odd.csv")
    reasons = [odd, line("b-1", kind="gemm_dense", hardware="L20"), line("c-1", hardware="8xMI300X", kind="ep_dispatch", system="DeepEP-normal"),
               line("d-1", config=GEMM | {"status": "withdrawn"}), *(odd.replace("a-3", f"a-{n}") for n in (4, 5))]  # fmt: skip
    (tmp_path / "four.csv").write_text("\n".join([HEADER, *reasons]) + "\n")
    with pytest.raises(ConfigError, match=r"\(a-3 and 2 more: [^;]*; b-1: [^;]*; c-1: [^;]*\), expected rows"):
        validate(tmp_path / "four.csv")
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


def test_rows_of_an_amd_gpu_take_its_own_rates(tmp_path):
    """The same answer with and without the cluster; constants of the user's own cluster stand before those of the GPU; calibrate begins there."""
    sizes = [(m, n) for m in (2048, 4096, 8192) for n in (4096, 8192)]
    rows = [line(f"g-{m}-{n}", hardware="MI300X", value=2 * m * n * 8192 / 650e6, config=GEMM | {"m": m, "n": n, "k": 8192}) for m, n in sizes]
    data = tmp_path / "rows.csv"
    data.write_text("\n".join([HEADER, *rows]) + "\n")
    (tmp_path / "own.toml").write_text('base = "hw-mi300x"\nname = "own"\nsource = "our machine"\n[constants]\n"hopper.bf16_sustained" = 0.7\n')
    alone, named, own = (validate(data, cluster=one).overall["bias"] for one in (None, "hw-mi300x", tmp_path / "own.toml"))
    assert alone == named
    assert own < alone
    fit = calibrate(data, tmp_path / "fit.toml", base="hw-mi300x").fit
    assert fit.before["hbm.fraction"] == 0.7755
    assert abs(alone) < 10
    (tmp_path / "ep.csv").write_text(f"{HEADER}\n{ep_line('a-1', 128).replace('8xH100', 'MI300X')}\n")
    with pytest.raises(ConfigError, match="only MoRI's kernels and kernels of one GPU"):
        validate(tmp_path / "ep.csv", cluster="hw-mi300x")
