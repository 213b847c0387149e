"""`dysharp calibrate`, cluster files with constants of their own, and the measuring script."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dysharp as ds
from dysharp.api import measuring
from dysharp.api.calibration import calibrate
from dysharp.base.errors import ConfigError
from dysharp.base.reading import parse_toml, read_text
from dysharp.costs.collectives import collective_us
from dysharp.costs.operators import gemm_us, grouped_gemm_us
from dysharp.measured.measurements import COLUMNS
from dysharp.specs import load_cluster
from dysharp.specs.catalog import cluster_from_toml
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from tests.measured.csv_lines import HEADER, Measured, line, write_own

Call = Callable[..., Any]
TRUE = {"hbm.fraction": 0.9, "hopper.bf16_sustained": 0.75, "gpu.kernel_us": 2.5, "h100.host_call_us": 3.9}
HEAD = 'base = "hw-dgx-h100"\nname = "mine"\n'


def sizes(kind: str) -> list[list[int]]:
    """What `dysharp measure` measures of a kind."""
    rows = [row for part in parse_toml(read_text(measuring.FILE), "").values() for row in part if row["kind"] == kind]
    return rows[0]["sizes"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A measured machine whose constants are known: what the formulas say with `TRUE`, and 2 % of noise."""
    gpu, constants, rng = load_gpu("h100-sxm"), fitted_values() | TRUE, np.random.default_rng(0)
    rows = []
    for m, n, k in sizes("gemm_dense"):
        config = {"dtype": "bfloat16", "m": m, "n": n, "k": k, "timing": "cuda graph"}
        rows.append(Measured("gemm_dense", "torch", config, "latency", float(gemm_us(gpu, constants, m, n, k, "bf16")), "us"))
    for each, groups, n, k in sizes("grouped_gemm_contiguous"):
        config = {"dtype": "bf16", "m_per_group": each, "groups": groups, "n": n, "k": k}
        us = float(grouped_gemm_us(gpu, constants, each, groups, n, k, "bf16"))
        rows.append(Measured("grouped_gemm_contiguous", "torch", config, "latency", us, "us"))
    noisy = [r._replace(value=r.value * rng.normal(1, 0.02)) for r in rows]
    noisy.append(Measured("hbm_bandwidth", "torch copy", {"bytes": 1 << 30}, "bandwidth", 0.9 * 3350, "GB/s"))
    noisy.append(Measured("kernel_launch", "torch add", {"timing": "cuda graph"}, "latency", 2.5, "us"))
    noisy.append(Measured("kernel_launch", "torch add", {"timing": "eager"}, "latency", 3.9, "us"))
    path = tmp_path / "own.csv"
    write_own(path, noisy, "my box", "a test")
    return path


def test_known_constants_are_found_again(dysharp: Call, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    done = dysharp("calibrate", str(own), "-o", str(out), "--json")
    found = json.loads(done.out)
    assert done.code == 0
    after = {row["name"]: row["after"] for row in found["constants"]}
    # The rows tell the overlap of memory and tensor cores too.
    assert after["sm.overlap"] == pytest.approx(fitted_values()["sm.overlap"], rel=0.05)  # an exponent: 1 % of a time moves it by several
    assert {name: value for name, value in after.items() if name != "sm.overlap"} == pytest.approx(TRUE, rel=0.03)
    every = found["errors"][-1]
    assert every["after"]["median_ape"] < 0.3 * every["before"]["median_ape"]
    assert every["held_out"]["median_ape"] < every["before"]["median_ape"]
    assert found["refused"]["deepep.call_us"].startswith("no row of deepep-dispatch")
    assert found["refused"]["gemm.tile_us"] == "no row depends on it"
    assert found["refused"]["serving.gap_us"] == "not fitted to rows of kernels"
    assert found["refused"]["b200.host_call_us"] == "the host of another machine"
    cluster = load_cluster(out)
    assert dict(cluster.constants) == pytest.approx(after, rel=1e-3)
    assert found["skipped"] == []
    assert (cluster.name, cluster.fitted["deepep.call_us"]) == ("mine", fitted_values()["deepep.call_us"])


def test_text_names_what_was_not_fitted(dysharp: Call, own: Path, tmp_path: Path) -> None:
    done = dysharp("calibrate", str(own), "-o", str(tmp_path / "mine.toml"))
    assert done.code == 0, done.err
    out = done.out
    assert max(len(line) for line in out.splitlines() if not line.startswith("written")) <= 100
    for part in ("before", "held out", "hbm.fraction", "not fitted", "no row depends on it", "--cluster"):
        assert part in out


def test_eager_launches_are_those_of_the_own_host(dysharp: Call, own: Path, tmp_path: Path) -> None:
    mine, base = tmp_path / "mine.toml", "hw-dgx-h200"
    dysharp("calibrate", str(own), "--base", base, "-o", str(mine))
    assert load_cluster(mine).fitted["h100.host_call_us"] == 3.9  # an H200 has no constant of its own
    theirs, ours = (ds.run("deepep", model="deepseek-v2-lite", cluster=name, tokens=16) for name in (base, mine))
    waited = [row.eager_us - row.time_us for row in (theirs, ours)]
    assert waited[1] == pytest.approx(3.9 / fitted_values()["h100.host_call_us"] * waited[0])


def test_the_host_alone_can_be_measured(tmp_path: Path) -> None:
    from dysharp.api.calibration import calibrate

    launches = [Measured("kernel_launch", "torch add", {"timing": "eager"}, "latency", us, "us") for us in (4.0, 6.0, 5.0)]
    write_own(tmp_path / "own.csv", launches, "my box", "a test")
    done = calibrate(tmp_path / "own.csv", tmp_path / "mine.toml", base="hw-dgx-b200")
    assert dict(done.fit.fitted) == {"b200.host_call_us": 5.0}
    assert done.fit.errors[0].family == "host"
    assert done.fit.errors[0].after.median_ape == pytest.approx(100 / 6)


def test_rows_that_are_not_used_are_named(dysharp: Call, own: Path, tmp_path: Path) -> None:
    more = [Measured("kernel_launch", "torch add", {"timing": "by hand"}, "latency", 4.0, "us"),
            Measured("gemm_dense", "torch", {"dtype": "int8", "m": 128, "n": 128, "k": 128}, "latency", 4.0, "us")]
    write_own(tmp_path / "more.csv", more, "my box", "a test")
    lines = [line.replace("mine-", "more-") for line in (tmp_path / "more.csv").read_text().splitlines()[1:]]
    own.write_text(own.read_text() + "\n".join(lines) + "\n")
    out = dysharp("calibrate", str(own), "-o", str(tmp_path / "mine.toml")).out
    assert "more-0001 (kernel_launch)" in out
    assert "dtype 'int8', expected fp8 or bf16" in out
    skipped = json.loads(dysharp("calibrate", str(own), "-o", str(tmp_path / "mine.toml"), "--json").out)["skipped"]
    assert [(row["id"], row["kind"]) for row in skipped] == [("more-0001", "kernel_launch"), ("more-0002", "gemm_dense")]


def test_nothing_is_said_of_a_fit_before_the_file_is_read(dysharp: Call, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(",".join(COLUMNS) + "\n")
    for name, text in (("absent.csv", "cannot be read"), ("empty.csv", "found a header and no rows")):
        done = dysharp("calibrate", str(tmp_path / name), "-o", str(tmp_path / "mine.toml"))
        assert done.code == 2
        assert text in done.err
        assert "fitting" not in done.err


def test_validate_judges_what_calibrate_wrote(dysharp: Call, own: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    dysharp("calibrate", str(own), "-o", str(mine))
    before, after = (json.loads(dysharp("validate", "--data", str(data), *more, "--json").out)["families"]
                     for data, more in ((_named(own), ()), (own, ("--cluster", str(mine)))))
    assert [row["family"] for row in before] == [row["family"] for row in after] == ["dense-gemm", "grouped-gemm"]
    assert all(new["median_ape"] < 0.5 * old["median_ape"] for old, new in zip(before, after, strict=True))
    other = own.with_name("other.csv")
    other.write_text(own.read_text().replace("my box", "8xB200", 1))
    shown = dysharp("validate", "--data", str(other), "--cluster", str(mine)).out
    assert "of b200" in shown


def _named(own: Path) -> Path:
    path = own.with_name("named.csv")
    path.write_text(own.read_text().replace("my box", "H100"))
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "hw-dgx-h100"\nname = "x"\nhbm_GBps = 1000\n', "found hbm_GBps 1000 (datasheet 3350), expected the datasheet of h100-sxm"),
        ('base = "paper-nvl72"\nname = "x"\n', "found the paper family, expected a machine with a packaged GPU"),
    ],
)
def test_validate_refuses_other_machines(dysharp: Call, own: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    done = dysharp("validate", "--data", str(own), "--cluster", str(tmp_path / "x.toml"))
    assert done.code == 2
    assert message in done.err.splitlines()[-1]


def test_links_are_fitted_to_collectives(tmp_path: Path) -> None:
    gpu, constants = load_gpu("h100-sxm"), fitted_values() | {"link.fraction": 0.7}
    rows = []
    for kind in ("alltoall", "all_gather", "reduce_scatter"):
        for gpus in (4, 8):
            for (size,) in sizes("nccl_alltoall")[1:]:
                us = float(collective_us(gpu, constants, kind, gpus, size))
                rows.append(Measured(f"nccl_{kind}", "NCCL", {"bytes": size, "gpus": gpus}, "latency", us, "us"))
    write_own(tmp_path / "own.csv", rows, "8x NVIDIA H100 80GB HBM3", "a test")
    from dysharp.api.calibration import calibrate

    done = calibrate(tmp_path / "own.csv", tmp_path / "mine.toml")
    assert done.fit.fitted["link.fraction"] == pytest.approx(0.7, rel=0.03)
    assert {"nccl.self_copy", "nccl.simple_syncs"} <= set(done.fit.fitted)


def test_rows_of_other_gpus_are_left_out(dysharp: Call, own: Path, tmp_path: Path) -> None:
    for hardware in ("8xB200", "A100-SXM", "8xH20"):
        own.write_text(own.read_text().replace("my box", hardware))
        done = dysharp("calibrate", str(own), "-o", str(tmp_path / "mine.toml"))
        assert done.code == 2
        assert "found no row that is predicted on h100-sxm" in done.err
        own.write_text(own.read_text().replace(hardware, "my box"))


def test_every_reason_is_told_once(tmp_path: Path) -> None:
    """nccl-tests that did not check the values: small rows are of no family that is fitted, large ones are weak."""
    config = {"gpus": 8, "nodes": 1, "quality": "WEAK: nccl-tests did not check the values (N/A)", "regime": "chained"}
    rows = [line(f"a-{i}", kind="nccl_all_reduce", system="NCCL", hardware="8xH100", config=config | {"bytes": 4 << i}) for i in range(0, 28, 3)]
    (tmp_path / "rows.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    with pytest.raises(ConfigError, match=r"\(a-0: of a family beyond the bars: .*; a-21: marked WEAK: .* did not check the values \(N/A\)\)"):
        calibrate(tmp_path / "rows.csv", tmp_path / "mine.toml")


def test_rows_that_say_nothing_are_told_which_kinds_do(tmp_path: Path) -> None:
    rows = [line(f"a-{i}", kind="all_reduce", system="NCCL", hardware="8xH100", config={"gpus": 8, "bytes": 8 << 20}) for i in range(5)]
    (tmp_path / "rows.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    with pytest.raises(ConfigError, match=r"not of a family that is predicted.*several sizes of several kinds, such as .*nccl_all_reduce"):
        calibrate(tmp_path / "rows.csv", tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--base", "paper-nvl72"), "expected a packaged hw cluster"),
        (("--name", "hw-dgx-h200"), "a packaged cluster; expected a name of its own"),
        (("-o", "mine.txt"), "expected .toml"),
    ],
)
def test_wrong_input_is_one_line(dysharp: Call, own: Path, tmp_path: Path, given: tuple[str, ...], text: str) -> None:
    done = dysharp("calibrate", str(own), "-o", str(tmp_path / "mine.toml"), *given)
    assert done.code == 2
    assert text in done.err.splitlines()[-1]
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.parametrize(
    ("constants", "text"),
    [
        ('"deepep.cal_us" = 3', 'unknown; did you mean "deepep.call_us"'),
        ('"deepep.call_us" = 300', "found 300, expected 5 to 40 us"),
        ('"deepep.call_us" = "fast"', "expected a number"),
        ('"deepep.call_us" = 9\ndeepep.call_us = 9', "found twice"),
    ],
)
def test_constants_of_a_cluster_file_are_checked(constants: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        cluster_from_toml(f"{HEAD}[constants]\n{constants}\n", "mine.toml")
    assert text in str(error.value)


def test_constants_reach_gemms_and_software() -> None:
    packaged = load_cluster("hw-dgx-h100")
    slow = cluster_from_toml(HEAD + "[constants]\nhopper.fp8_sustained = 0.4\ndeepep.call_us = 40.0\n", "mine.toml")
    assert hash(slow) != hash(packaged)
    rows = [ds.run("deepep", model="deepseek-v3", cluster=cluster, tokens=512, routing="uniform") for cluster in (packaged, slow)]
    gemms = [row.phases_us["gemm1"]["busy"] for row in rows]
    starts = [row.phases_us["dispatch"]["start"] for row in rows]
    assert gemms[1] > 1.1 * gemms[0]
    assert starts[1] - starts[0] == pytest.approx(40 - fitted_values()["deepep.call_us"])


def test_the_script_writes_the_columns(own: Path) -> None:
    with own.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == COLUMNS
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_the_script_is_the_verb(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "examples" / "measure_gpu.py"
    line = [sys.executable, str(script), "--only", "nothing", "-o", str(tmp_path / "x.csv")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "measure: only: found 'nothing'" in done.stderr
