"""Intervals from residuals of rows whose group was left out: what they hold on drawn groups, how they widen, sums, rates and the packaged table."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from dysharp.measured import intervals
from dysharp.measured.intervals import ASKED, COLUMNS, NEW, Asked, Interval, coverage, errors, held_out, interval_of, residuals_from, summed

UNIT = Interval(0.8, 0.9, 1.1, 1.2, 0.05, near=True)


def table(groups: int = 30, spread: float = 0.1, rows: int = 20) -> str:
    """GPUs that err by their own factor and rows that err around it; model "m0" to "m9"."""
    draw, lines = np.random.default_rng(3), [",".join(COLUMNS)]
    for gpu in range(groups):
        own = draw.normal(0, spread)
        for n in range(rows):
            off = own + draw.normal(0, 0.05)
            lines.append(f"kernels,gemm,g{gpu},m{n % 10},s{gpu % 3},e,,,{10 ** (n % 4)},{off:.4f},{off:.4f},{0.5 * off:.4f},")
    return "\n".join(lines)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(intervals, "residuals", lambda: residuals_from(table()))
    interval_of.cache_clear()
    intervals._packaged_like.cache_clear()
    yield
    interval_of.cache_clear()
    intervals._packaged_like.cache_clear()


def test_intervals_without_a_group_hold_its_rows() -> None:
    (found,) = coverage(residuals_from(table()), ("gpu",))
    assert found["n"] == 600
    for level, (least, most) in ASKED.items():
        assert least <= found[f"inside{100 * level:.0f}"] <= most
    assert math.log(found["width90"]) == pytest.approx(2 * 1.645 * math.hypot(0.1, 0.05), rel=0.25)


def test_a_group_does_not_make_its_own_interval() -> None:
    text = table()
    far = text.replace("kernels,gemm,g7,", "kernels,gemm,far,")
    moved = "\n".join(line if ",far," not in line else line.replace(line.split(",")[9], "5.0") for line in far.splitlines())
    wide = held_out(residuals_from(moved), "gpu").wide
    mine = residuals_from(moved).words["gpu"] == "far"
    assert wide[mine].max() < 1.0
    assert wide[~mine][:, 1].max() < 5.0


def test_a_gpu_that_was_never_measured_has_a_wider_interval(drawn: None) -> None:
    near, far = (interval_of(Asked("kernels", "gemm", gpu, 10.0)) for gpu in ("g0", "new"))
    assert near.near
    assert not far.near
    assert math.log(far.high90 / far.low90) > 1.5 * math.log(near.high90 / near.low90)
    assert interval_of(Asked("kernels", "unknown", "g0", 10.0)).high90 > near.high90


def test_a_new_model_is_as_far_as_a_new_gpu_where_few_models_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models of a GPU, then ten: a tenth of ten is known from nine on. What was measured keeps its interval."""
    ends = {}
    for models in (4, 10):
        text = "\n".join(line for line in table().splitlines() if not any(f",m{n}," in line for n in range(models, 10)))
        monkeypatch.setattr(intervals, "residuals", lambda text=text: residuals_from(text))
        interval_of.cache_clear()
        intervals._packaged_like.cache_clear()
        asked = {model: Asked("kernels", "gemm", "g0", 0.0, model) for model in ("m1", "new")} | {"far": Asked("kernels", "gemm", "new", 0.0)}
        ends[models] = {name: interval_of(one).high90 for name, one in asked.items()}
    interval_of.cache_clear()
    intervals._packaged_like.cache_clear()
    assert ends[4]["m1"] < ends[4]["new"] == ends[4]["far"]
    assert ends[10]["m1"] == ends[10]["new"] < ends[10]["far"]


def test_an_engine_never_measured_is_as_a_family_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{table()}\n" + "\n".join(table(spread=0.5).replace("kernels,gemm", "kernels,attention").splitlines()[1:])
    monkeypatch.setattr(intervals, "residuals", lambda: residuals_from(text))
    interval_of.cache_clear()
    intervals._packaged_like.cache_clear()
    asked = (Asked("kernels", family, "g0", 10.0, "m1", engine) for family, engine in (("gemm", "e"), ("gemm", ""), ("gemm", "other"), ("none", "e")))
    known, unsaid, other, none = (interval_of(one).high90 for one in asked)
    interval_of.cache_clear()
    intervals._packaged_like.cache_clear()
    assert known == unsaid < other == none


def test_a_source_that_errs_by_itself_widens_what_was_never_measured(drawn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, off in (("alike", ""), ("apart", "0.9")):
        text = "\n".join(f"{line}{off}" if line.endswith(",") else line for line in table().splitlines())
        monkeypatch.setattr(intervals, "residuals", lambda text=text: residuals_from(text))
        interval_of.cache_clear()
        intervals._packaged_like.cache_clear()
        found[name] = [interval_of(Asked("kernels", "gemm", gpu, 0.0)).high90 for gpu in ("g0", "new")]
    assert found["apart"][0] == found["alike"][0]
    assert found["apart"][1] > 2.0 > found["alike"][1]


def test_ends_are_in_order_at_every_size(drawn: None) -> None:
    for us in (0.0, 1e-3, 1.0, 3e2, 1e9):
        found = interval_of(Asked("kernels", "gemm", "g1", us))
        assert 0 < found.low90 <= found.low80 <= 1.0 <= found.high80 <= found.high90


def test_a_rate_has_the_inverse_of_a_time() -> None:
    assert UNIT.around(10.0) == (8.0, 12.0)
    assert UNIT.around(10.0, 0.8) == pytest.approx((9.0, 11.0))
    low, high = UNIT.around(10.0, rate=True)
    assert (low, high) == pytest.approx((10 / 1.2, 10 / 0.8))
    assert UNIT.of(10.0) == {"interval80": [9.0, 11.0], "interval90": [8.0, 12.0]}
    assert UNIT.usual == pytest.approx(25.0)


def test_parts_of_a_sum_err_independently() -> None:
    both = summed([(0.5, UNIT), (0.5, UNIT)])
    assert both.high90 == pytest.approx(1 + 0.2 / math.sqrt(2))
    assert summed([(1.0, UNIT)]).low80 == pytest.approx(0.9)
    assert both.within(UNIT).low90 == pytest.approx(0.8)
    assert UNIT.wider(0.1).high80 == pytest.approx(1.2)


def test_errors_out_of_sight_count_a_row_once_and_a_new_row_as_it_is() -> None:
    lines = [",".join(COLUMNS), "calls,a,g,m,s,,,,1,0.1,0.2,,", f"calls,a,g,m,s,,,{NEW},1,0.3,9.0,9.0,9.0"]
    (found,) = errors(residuals_from("\n".join(lines)))
    assert found["n"] == 2
    assert found["median_ape"] == pytest.approx(100 * (1 - math.exp(-0.2)))
    assert found["p90_ape"] == pytest.approx(100 * (1 - math.exp(-0.3)))
    assert found["seen_median_ape"] == pytest.approx(100 * (1 - math.exp(-0.1)))


def test_the_packaged_table_has_every_kind_and_finite_residuals() -> None:
    every = intervals.residuals()
    assert set(every.words["kind"]) == {kind for kinds in intervals.SCOPES.values() for kind in kinds}
    assert np.isfinite(every.numbers["all"]).all()
    assert len({entry["what"] for entry in errors(every)}) == len(intervals.BARS)


@pytest.mark.slow
def test_intervals_hold_what_they_say_of_gpus_that_were_left_out() -> None:
    found = {entry["scope"]: entry for entry in coverage(intervals.residuals(), ("gpu",)) if entry["scope"] != "memory"}
    held = {(scope, level): one[f"inside{100 * level:.0f}"] for scope, one in found.items() for level in ASKED}
    assert {key: round(share, 1) for key, share in held.items() if not ASKED[key[1]][0] <= share <= ASKED[key[1]][1]} == {}


def test_a_tpot_has_no_interval_of_a_ttft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU that was never measured: residuals of a TTFT four times as wide leave a TPOT's interval as it is."""
    ends = []
    for wide in (1, 4):
        text = table().replace("kernels,gemm,", "serving,TPOT\\ x,")
        other = residuals_from(text.replace("TPOT\\ x", "TTFT\\ x"))
        both = residuals_from(text)
        words = {name: np.concatenate([both.words[name], other.words[name]]) for name in both.words}
        words["family"] = np.char.replace(words["family"].astype("U20"), "\\", ",")
        numbers = {name: np.concatenate([both.numbers[name], other.numbers[name] * (1 if name == "us" else wide)]) for name in both.numbers}
        joined = intervals.Residuals(words, numbers)
        monkeypatch.setattr(intervals, "residuals", lambda joined=joined: joined)
        interval_of.cache_clear()
        intervals._packaged_like.cache_clear()
        ends.append(interval_of(Asked("serving", "TPOT, x", "new", 10.0)))
    interval_of.cache_clear()
    intervals._packaged_like.cache_clear()
    assert ends[0] == ends[1]
