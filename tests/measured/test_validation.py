"""`dysharp validate`: reading a CSV, statistics, the family map, fitting, and the bars on the shared measurements where they are there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dysharp.analysis.calibration import hold_out, ratios, refit, stages, to_toml
from dysharp.analysis.families import ASK, BARS, family_of, in_scope
from dysharp.analysis.fitting import Free, fit
from dysharp.analysis.layer_queries import busiest_rank
from dysharp.analysis.measured import COLUMNS, Measurement, measurements_from_csv, read_measurements
from dysharp.analysis.predictors import PREDICTORS, answers
from dysharp.analysis.programs import deepep_us
from dysharp.analysis.queries import message_bytes
from dysharp.analysis.summary import summarise
from dysharp.analysis.trust import judged
from dysharp.analysis.validation import Sorted, Validation, errors_of, sort_rows, validate_rows
from dysharp.api.validation import refit as refit_file
from dysharp.api.validation import validate
from dysharp.cli.app import cli
from dysharp.errors import ConfigError, SimulationError
from dysharp.reports.plots import save_figure
from dysharp.reports.validation import page_of, plot_validation, write_page
from dysharp.specs.fitted import fitted, fitted_from_toml, fitted_values

SHARED = Path(__file__).parents[3] / "shared" / "data" / "measured.csv"
HEADER = ",".join(COLUMNS)
GEMM = {"dtype": "bfloat16", "k": 4096, "kernel": "torch.nn.functional.linear", "m": 1024, "n": 4096, "timing": "cuda graph"}


def line(
    id_: str = "a-1", *, kind: str = "gemm_dense", config: object = None, metric: str = "latency", value: object = 43.0, unit: str = "us"
) -> str:
    text = config if isinstance(config, str) else json.dumps(GEMM if config is None else config)
    quoted = '"' + text.replace('"', '""') + '"'
    return f"{id_},{kind},vLLM linear,H100-SXM,{quoted},{metric},{value},{unit},a source"


def read(*lines: str) -> list[Measurement]:
    return measurements_from_csv("\n".join([HEADER, *lines]) + "\n", "m.csv")


def test_a_row_is_read():
    (row,) = read(line())
    assert (row.id, row.value, row.unit, row.config["m"]) == ("a-1", 43.0, "us", 1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.csv: found an empty file, expected the header id,kind"),
        (f"{HEADER},colour\n", r'm.csv: header: found unknown column .colour.*expected one of'),
        ("id,kind,system,hardware,config_json,metric,value,units,source\n", 'header: found unknown column .units.; did you mean "unit"'),
        ("id,kind,system,hardware,config_json,metric,value,unit\n", "header: found column source 0 times"),
        (f"{HEADER}\na,b,c\n", "m.csv: row 1: found 3 columns, expected 9"),
        (f"{HEADER}\n{line(value='nan')}\n", "m.csv: row 1: column value: found 'nan', expected a finite number of at least 0"),
        (f"{HEADER}\n{line()}\n{line('a-2', value=-1)}\n", "m.csv: row 2: column value: found '-1', expected a finite"),
        (f"{HEADER}\n{line(value='fast')}\n", "row 1: column value: found 'fast', expected a number"),
        (f"{HEADER}\n{line(value=0)}\n", "row 1: column value: found 0, expected more than 0 us"),
        (f"{HEADER}\n{line(unit='s')}\n", "row 1: column unit: found 's' for metric 'latency', expected us or ms"),
        (f"{HEADER}\n{line(unit='GB/s')}\n", "row 1: column unit: found 'GB/s' for metric 'latency', expected us or ms"),
        (f"{HEADER}\n{line(config='[1]')}\n", r"row 1: column config_json: found '\[1\]', expected a JSON object"),
        (f"{HEADER}\n{line(config='{')}\n", "row 1: column config_json: found '{', expected a JSON object"),
        (f'{HEADER}\n{line(config=chr(123) + chr(34) + "m" + chr(34) + ": NaN}")}\n', "column config_json: .*NaN is no JSON number"),
        (f"{HEADER}\n{line(config=GEMM | {'m': -8})}\n", "row 1: column config_json: 'm': found -8, expected a finite number of at least 0"),
        (f"{HEADER}\n{line()}\n{line()}\n", "row 2: column id: found 'a-1' again, expected each id once .first in row 1"),
        (f"{HEADER}\n{line('')}\n", "row 1: column id: found nothing, expected a text"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        measurements_from_csv(text, "m.csv")
    assert "\n" not in str(error.value)


def test_a_statement_may_be_text():
    (row,) = read(line(kind="nvlink_fact", metric="nvls_wire_bytes", value="send S/N", unit="-"))
    assert row.value is None
    assert family_of(row) is None


def test_statistics_by_hand():
    errors = errors_of(np.array([110.0, 80.0, 100.0, 150.0]), np.full(4, 100.0))
    assert errors.n == 4
    assert errors.mape == pytest.approx(20.0)
    assert errors.median_ape == pytest.approx(15.0)
    assert errors.bias == pytest.approx(5.0)
    assert errors.p90_ape == pytest.approx(20 + 0.7 * 30)


def test_supported_and_unsupported_rows():
    weak = line("a-2", kind="moe_layer_fwd", config={"quality": "WEAK", "ep": 8})
    small = line("a-3", config=GEMM | {"dtype": "fp8_block", "timing": "eager"}, value=99.0)
    other = line("a-4", kind="routing_stat", metric="entropy", unit="bits")
    shapeless = line("a-5", kind="gemm_max", config={"dtype": "bf16"}, metric="throughput", unit="TFLOPS")
    done = validate_rows(sort_rows(read(line(), weak, small, other, shapeless)), fitted())
    assert [row["family"] for row in done.groups] == ["dense-gemm"]
    assert done.overall["n"] == 1
    assert done.overall["coverage"] == pytest.approx(25.0)  # of four rows; entropy belongs to no family
    reasons = {row["kind"]: row["reason"] for row in done.unsupported if row["n"] == 1}
    assert reasons["moe_layer_fwd"].startswith("rule 14.7")
    assert "without its shape" in reasons["gemm_max"]
    assert any(row["reason"].startswith("rule 14.4") for row in done.unsupported)
    assert not done.holds


def test_a_rate_is_judged_as_a_rate():
    us, tflops = 43.0, 2 * 1024 * 4096 * 4096 / 43.0 / 1e6
    time, rate = (validate_rows(sort_rows(read(row)), fitted()).groups[0] for row in (line(), line(metric="throughput", value=tflops, unit="TFLOPS")))
    assert (1 + time["bias"] / 100) * (1 + rate["bias"] / 100) == pytest.approx(1.0)
    ms = validate_rows(sort_rows(read(line(value=us / 1000, unit="ms"))), fitted()).groups[0]
    assert ms["bias"] == pytest.approx(time["bias"])


def test_no_rows_is_no_success():
    done = validate_rows(sort_rows([]), fitted())
    assert done.overall["n"] == 0
    assert not done.holds
    json.dumps(done.to_dict(), allow_nan=False)
    assert "No row has a prediction." in page_of(done)


@pytest.mark.parametrize(
    ("config", "n_bytes"),
    [({"bytes": 2097152}, 2 << 20), ({"size": "16MiB"}, 16 << 20), ({"bytes_label": "33M"}, 32 << 20), ({"bytes_label": "8G"}, 8 << 30)],
)
def test_message_sizes(config, n_bytes):
    (row,) = read(line(kind="nccl_all_reduce", config=config))
    assert message_bytes(row) == n_bytes


def test_scope():
    (row,) = read(line(kind="ep_dispatch", config={"nodes": 2}))
    assert not in_scope(row)


def test_busiest_rank():
    assert busiest_rank(4, 64, 2, 32, "balanced") == (64.0, 16.0)
    assert busiest_rank(4, 64, 2, 1, "balanced") == (2.0, 2.0)
    rows, touched = busiest_rank(8, 256, 8, 4096, "power_law_1.01")
    assert rows > 1.2 * 4096 * 8
    assert 0 < touched <= 32
    assert busiest_rank(8, 256, 8, 4096, "power_law_1.01") == (rows, touched)
    # A token chooses an expert once: no load is above the number of tokens.
    assert busiest_rank(2, 2, 2, 100, "power_law_sampled_1.9") == (200.0, 1.0)


def test_fit_recovers_constants_and_shrugs_off_an_outlier():
    x = np.linspace(1, 100, 60)
    true = 5.0 + x / 3.0
    true[7] *= 10
    found = fit([Free("a", 1.0, 0.1, 50.0), Free("r", 1.0, 0.1, 50.0)], {}, lambda v: v["a"] + x / v["r"], true)
    assert found["a"] == pytest.approx(5.0, rel=0.02)
    assert found["r"] == pytest.approx(3.0, rel=0.02)


def test_fit_stays_inside_its_bounds():
    x = np.linspace(1, 10, 20)
    assert fit([Free("r", 1.0, 0.5, 2.0)], {}, lambda v: x / v["r"], x / 9)["r"] == pytest.approx(2.0)


def test_constants_have_meaning_unit_and_rows_and_are_few():
    table = fitted()
    assert len(table) <= BARS.constants
    for constant in table.values():
        assert constant.low <= constant.value <= constant.high
        assert constant.meaning
        assert constant.fitted_on
    assert {family for families, _ in stages(table) for family in families} <= set(ASK)
    again = fitted_from_toml(to_toml(table, "head"), "x")
    assert {n: c.value for n, c in again.items()} == pytest.approx(fitted_values(), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nvalue = 1", "x: a: found .* expected a table of value, low, high"),
        ('[a]\nvalue = 1\nlow = 2\nhigh = 3\nunit = "us"\nmeaning = "m"\nstage = "nccl"\nfitted_on = "r"', "expected 0 < low <= value <= high"),
        ('[a]\nvalue = true\nlow = 1\nhigh = 3\nunit = "us"\nmeaning = "m"\nstage = "nccl"\nfitted_on = "r"', "expected three finite numbers"),
        ('[a]\nvalue = 1\nlow = 1\nhigh = 3\nunit = "us"\nmeaning = ""\nstage = "nccl"\nfitted_on = "r"', "found an empty text"),
    ],
)
def test_bad_constants_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        fitted_from_toml(text, "x")


def some_gemms() -> list[Measurement]:
    sizes = [(m, n) for m in (512, 2048, 8192) for n in (2048, 4096, 8192)]
    lines = [line(f"g-{m}-{n}", config=GEMM | {"m": m, "n": n}, value=2 * m * n * 4096 / 8e8 + 5) for m, n in sizes]
    return read(*lines)


def test_hold_out_leaves_whole_shapes_out():
    found = sort_rows(some_gemms())
    predicted = found.predictions(fitted_values())
    table = hold_out(found, fitted(), "shape", predicted)
    by = {row["family"]: row for row in table}
    assert by["dense-gemm"]["groups"] == 3
    assert by["macro"]["held_out"] > 0
    single = hold_out(found, fitted(), "gpu", predicted)
    assert single[0]["held_out"] is None  # one GPU: nothing is left to fit on


def test_refit_moves_only_constants_with_rows():
    found = sort_rows(some_gemms())
    new = refit(found, fitted())
    assert new["link.fraction"] == fitted()["link.fraction"]
    assert new["hopper.bf16_sustained"].value != fitted()["hopper.bf16_sustained"].value


def write(tmp_path: Path) -> Path:
    path = tmp_path / "m.csv"
    path.write_text("\n".join([HEADER, line(), line("a-2", config=GEMM | {"m": 2048}, value=87.0)]) + "\n")
    return path


def test_command(tmp_path):
    path = write(tmp_path)
    run = CliRunner()
    done = run.invoke(cli, ["validate", "--data", str(path), "--json"])
    assert done.exit_code == 0
    fields = json.loads(done.stdout)
    assert set(fields) >= {"groups", "overall", "families", "fitted_constants", "unsupported"}
    assert set(fields["groups"][0]) >= {"family", "kind", "system", "hardware", "n", "mape", "median_ape", "p90_ape", "bias"}
    assert set(fields["overall"]) >= {"n", "median_ape", "p90_ape", "macro_median_ape", "macro_p90_ape"}
    shown = run.invoke(cli, ["validate", "--data", str(path), "--groups", "--plot", str(tmp_path / "a.svg"), "--page", str(tmp_path / "a.md")])
    assert "dense-gemm" in shown.stdout
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert (tmp_path / "a.md").read_text().startswith("<!-- Generated: dysharp validate --data")


def test_command_says_which_rows_it_left_out(tmp_path):
    path = write(tmp_path)
    odd = line("a-3", kind="routing_stat", metric="entropy", unit="bits")
    path.write_text(path.read_text() + f"{odd}\n{line('a-4').replace('H100-SXM', '8xMI300X')}\n")
    run = CliRunner()
    shown = run.invoke(cli, ["validate", "--data", str(path)]).stdout
    assert "all 2 rows with a prediction" in shown
    assert "2 rows without a prediction; 0 count against coverage" in shown
    for part in ("not of a family that is predicted", "routing_stat", "a-3", "no packaged GPU of this kind", "a-4"):
        assert part in shown
    every = run.invoke(cli, ["validate", "--data", str(path), "--groups"]).stdout
    assert "routing_stat" in every
    page = tmp_path / "a.md"
    run.invoke(cli, ["validate", "--data", str(path), "--page", str(page)])
    assert "1 more rows are of kinds that no family predicts: routing_stat 1." in page.read_text()


def test_the_page_shows_its_plot(tmp_path):
    write_page(validate(write(tmp_path)), tmp_path / "v.md")
    assert "](figures/v.svg)" in (tmp_path / "v.md").read_text()
    assert (tmp_path / "figures" / "v.svg").stat().st_size > 1000
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "figures").write_text("no folder")
    with pytest.raises(ConfigError, match="figures: cannot be written"):
        write_page(validate(write(tmp_path)), tmp_path / "w" / "v.md")


def test_a_plot_of_many_points_is_a_small_file(tmp_path):
    rng = np.random.default_rng(0)
    real = 10 ** rng.uniform(0.5, 4.5, 4000)
    points = tuple((list(ASK)[i % 9], float(us), float(us * rng.normal(1, 0.1))) for i, us in enumerate(real))
    save_figure(plot_validation(points), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size < 200_000


def test_own_constants_are_judged(tmp_path):
    path, own = write(tmp_path), tmp_path / "own.toml"
    run = CliRunner()
    assert run.invoke(cli, ["validate", "--data", str(path), "--refit", str(own)]).exit_code == 0
    packaged, fitted_ = (json.loads(run.invoke(cli, ["validate", "--data", str(path), "--json", *more]).stdout)["overall"]["median_ape"]
                         for more in ([], ["--constants", str(own)]))
    assert fitted_ < packaged
    text = own.read_text()
    for wrong, message in ((text.replace("[link.fraction]", "[link.part]"), "unknown constant"), (text.split("[link.fraction]")[0], "expected also")):
        own.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            validate(path, constants=own)
    done = run.invoke(cli, ["validate", "--data", str(path), "--refit", str(own), "--constants", str(own)])
    assert "found --refit beside --constants" in str(done.exception)


def test_command_errors(tmp_path):
    (tmp_path / "none.csv").write_text(HEADER + "\n")
    with pytest.raises(ConfigError, match=r"none.csv: found a header and no rows, expected rows such as those of docs/measurements.md"):
        validate(tmp_path / "none.csv")
    odd = line("a-3", kind="routing_stat", metric="entropy", unit="bits")
    (tmp_path / "odd.csv").write_text(f"{HEADER}\n{odd}\n{odd.replace('a-3', 'a-4')}\n")
    with pytest.raises(ConfigError, match=r"found no row that is predicted \(a-3 and 1 more: not of a family that is predicted\), expected rows"):
        validate(tmp_path / "odd.csv")
    with pytest.raises(ConfigError, match=r"found no measurements .none are packaged., expected --data CSV"):
        validate()
    with pytest.raises(ConfigError, match="hold-out: found 'row'"):
        validate(write(tmp_path), hold_out=["row"])
    with pytest.raises(ConfigError, match="cannot be read"):
        validate(tmp_path / "absent.csv")
    with pytest.raises(ConfigError, match="cannot be written"):
        refit_file(write(tmp_path), tmp_path / "absent" / "fitted.toml")


def test_plot_has_a_point_per_case():
    ax = plot_validation((("a", 1.0, 1.1), ("a", 2.0, 2.1), ("b", 3.0, 2.0)))
    assert [len(drawn.get_xdata()) for drawn in ax.get_lines()] == [2, 1, 2]  # families, then the line of equality


NORMAL = {"dtype": "fp8_e4m3+fp32 scale/128", "ep": 8, "experts": 64, "hidden": 512, "nodes": 1, "sms": 8, "topk": 4}


def ep_line(id_: str, tokens: int, *, kind: str = "ep_dispatch", system: str = "DeepEP-normal", hardware: str = "8xH100", **config: object) -> str:
    dtype = {"dtype": "bf16"} if kind == "ep_combine" else {}
    text = json.dumps(NORMAL | dtype | {"tokens_per_rank": tokens} | config).replace('"', '""')
    return f'{id_},{kind},{system},{hardware},"{text}",latency,50,us,a source'


def test_systems_are_judged_by_their_programs() -> None:
    found = sort_rows(read(ep_line("a", 16), ep_line("b", 16, kind="ep_combine"), ep_line("c", 16, system="DeepEP-LL"), line()))
    predicted = found.predictions(fitted_values())
    assert [case.ask is not None for case in found.cases] == [True, True, True, False]
    case = found.cases[0].ask.case
    assert predicted[:2] == pytest.approx(deepep_us(case, fitted_values()))
    done = validate_rows(found, fitted(), predicted)
    assert {row["family"]: row["by"] for row in done.families} == {
        "deepep-dispatch": "program", "deepep-combine": "program", "deepep-ll": "program", "dense-gemm": "rate form",
    }
    forms = {row["family"]: row for row in done.forms}
    assert set(forms) == {"deepep-dispatch", "deepep-combine", "deepep-ll"}  # nothing to compare a rate form with
    closed = found.batch().values(fitted_values())[0]
    assert forms["deepep-dispatch"]["closed_over_program"] == pytest.approx(100 * (closed / predicted[0] - 1))
    assert "program" in page_of(done)


def test_every_family_names_its_predictor() -> None:
    assert set(PREDICTORS) == set(ASK)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sms": 7}, "an odd number of SMs"),
        ({"ep": 16}, "no packaged cluster of 16 h100-sxm"),
        ({"experts": 60}, "experts that the GPUs do not share evenly"),
        ({"hidden": 512.5}, "no whole number of hidden"),
        ({"hidden": 1}, "hidden 1, expected 128 to 65536"),
        ({"tokens_per_rank": 1e12}, r"tokens_per_rank 1e+12, expected 1 to 1048576"),
        ({"sms": 1000}, "sms 1000, expected 1 to 256"),
        ({"dtype": "int3"}, "dtype 'int3', expected fp8 or bf16"),
        ({"kind": "ep_combine", "dtype": "fp8"}, "dtype 'fp8', expected bf16"),
        ({"system": "TRTLLM-NVLinkOneSided", "kind": "ep_alltoall"}, "kind 'ep_alltoall' of TensorRT-LLM, expected ep_prepare or"),
    ],
)
def test_a_row_without_a_program_is_unsupported(changed, reason) -> None:
    """A closed form might answer, but a system is predicted by its Program only."""
    found = sort_rows(read(ep_line("a", 16, **changed)))
    assert not found.cases
    assert reason in found.missing[0].reason
    assert found.missing[0].counted


def test_a_row_that_its_program_refuses_does_not_end_the_others() -> None:
    found, predicted = sort_rows(read(ep_line("a", 16), ep_line("b", 16, hidden=16384), line("c"))).answered(fitted_values())
    assert [case.row.id for case in found.cases] == ["a", "c"]
    assert np.isfinite(predicted).all()
    (missing,) = found.missing
    assert (missing.row.id, missing.counted) == ("b", True)
    assert "found rows of 32768 B" in missing.reason
    done = validate_rows(found, fitted(), predicted)
    assert [(row["ids"], row["n"]) for row in done.unsupported] == [(["b"], 1)]
    with pytest.raises(SimulationError, match=r"row b: no prediction: .*32768 B"):
        sort_rows(read(ep_line("b", 16, hidden=16384))).predictions(fitted_values())


@pytest.mark.parametrize(("dtype", "same"), [("bf16", "bf16"), ("bfloat16", "bf16"), ("fp8_block", "fp8"), ("float8_e4m3fn", "fp8")])
def test_data_types_that_are_known(dtype: str, same: str) -> None:
    (case,) = sort_rows(read(line(config=GEMM | {"dtype": dtype}))).cases
    assert case.query.dtypes == (same,)


@pytest.mark.parametrize("dtype", ["fp16", "float16", "int8", "fp32", "tf32", "int3", "fp80", 8])
@pytest.mark.parametrize("kind", ["gemm_dense", "grouped_gemm_masked"])
def test_data_types_that_are_not_known(dtype: object, kind: str) -> None:
    (missing,) = sort_rows(read(line(kind=kind, config=GEMM | {"m_per_group": 128, "groups": 4, "dtype": dtype}))).missing
    assert missing.reason == f"dtype {str(dtype)!r}, expected fp8 or bf16"


def test_low_latency_rows_in_bf16_take_longer() -> None:
    lines = [ep_line(dtype, 128, system="DeepEP-LL", hidden=4096, dtype=dtype) for dtype in ("fp8", "bf16")]
    found, predicted = sort_rows(read(*lines)).answered(fitted_values())
    assert predicted[1] > 1.3 * predicted[0]
    closed = found.batch().values(fitted_values())
    assert closed[1] > 1.3 * closed[0]


@pytest.mark.parametrize(("changes", "reason"), [({"unit": "TB/s", "metric": "bandwidth"}, "no prediction in TB/s, expected us or ms"),
                                                 ({"unit": "-", "metric": "a_fact", "value": "fast"}, "no value above 0")])
def test_a_row_in_another_unit_has_no_prediction(changes: dict[str, str], reason: str) -> None:
    (missing,) = sort_rows(read(line(**changes))).missing
    assert missing.reason.startswith(reason)


def test_processes_give_the_same_numbers_in_the_same_order() -> None:
    points = [(t, k, kind) for t in (8, 24) for k in (2, 4, 6) for kind in ("ep_dispatch", "ep_combine")]
    lines = [ep_line(f"{kind}-{t}-{k}", t, topk=k, kind=kind) for t, k, kind in points]
    found, told = sort_rows(read(*lines)), []
    assert len(found.cases) == len(lines)
    wanted = [(case.ask, fitted_values()) for case in found.cases]
    one = answers(wanted, 1, lambda done, total: told.append((done, total)))
    assert one == answers(wanted, 2)
    assert told[-1] == (12, 12)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_summary_is_read_back(tmp_path) -> None:
    found = sort_rows(read(ep_line("a", 16), line()))
    path = tmp_path / "validated.toml"
    path.write_text(summarise(found, found.predictions(fitted_values())))
    table = judged(path)
    assert table["deepep-dispatch", "h100-sxm"].by == "program"
    assert table["dense-gemm", "h100-sxm"].by == "rate form"


def test_bars_elsewhere_are_errors_of_rows_that_were_held_out(tmp_path) -> None:
    """Not those of the fit: twice the measured value while a GPU is held out is 100 % off. One GPU alone has no such entry."""
    other = line("b").replace("H100-SXM", "H800-SXM5").replace("vLLM linear", "DeepGEMM")
    found = sort_rows(read(ep_line("a", 16), line(), other))
    path = tmp_path / "validated.toml"
    path.write_text(summarise(found, found.predictions(fitted_values()), 2 * found.measured()))
    table = judged(path)
    assert {gpu for family, gpu in table if family == "dense-gemm"} == {"h100-sxm", "h800", "other"}
    assert (table["dense-gemm", "other"].n, table["dense-gemm", "other"].p90) == (2, 100)
    assert ("deepep-dispatch", "other") not in table


def test_hosts_are_inputs_of_a_machine() -> None:
    """A fit leaves them alone, with or without their rows."""
    found = sort_rows(some_gemms())
    new = refit(found, fitted(), np.zeros(len(found.cases), bool))
    assert {name: c.value for name, c in new.items() if c.stage == "given"} == {n: c.value for n, c in fitted().items() if n.endswith("host_call_us")}


@pytest.fixture(scope="module")
def measured() -> tuple[Sorted, np.ndarray, Validation]:
    """All shared rows with their predictions (minutes)."""
    if not SHARED.exists():
        pytest.skip("the shared measurements are not beside this checkout")
    found = sort_rows(read_measurements(SHARED))
    predicted = found.predictions(fitted_values(), jobs=2)
    return found, predicted, validate_rows(found, fitted(), predicted)


@pytest.mark.slow
def test_the_bars_reached_on_the_shared_measurements(measured) -> None:
    _, _, done = measured
    assert done.holds, [bar for bar in done.bars if not bar["holds"]]
    medians = {row["family"]: row["median_ape"] for row in done.families}
    assert set(medians) == set(ASK)
    reached = {"deepep-dispatch": 6.2, "deepep-combine": 5.7, "deepep-ll": 4.6, "trtllm-a2a": 6.2, "nccl": 5.2, "dense-gemm": 8.6,
               "grouped-gemm": 4.2, "fused-layer": 8.4, "layer": 5.8}
    assert all(medians[family] <= bar for family, bar in reached.items()), medians


@pytest.mark.slow
def test_the_packaged_constants_are_what_the_shared_measurements_give(measured) -> None:
    found, predicted, _ = measured
    new = {n: c.value for n, c in refit(found, fitted(), ratio=ratios(found, fitted(), predicted)).items()}
    packaged = fitted_values()
    # Programs take whole tokens: nothing of them says where between two counts the constant lies.
    assert new.pop("deepep.tokens_in_flight") == pytest.approx(packaged.pop("deepep.tokens_in_flight"), abs=0.5)
    assert new == pytest.approx(packaged, rel=0.05)
