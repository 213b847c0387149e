"""Texts of `--start` and `--slow`: values, draws, files, refusals; a run with them."""

import json
from pathlib import Path

import numpy as np
import pytest

import dysharp as ds
from dysharp.base.errors import ConfigError
from dysharp.runs.skew import make_skew, skew_line


def test_texts() -> None:
    assert make_skew(None, None, 4, 0) is None
    assert make_skew("fixed:0", "rank=1:1", 4, 0) is None
    fixed = make_skew("fixed:2.5", None, 4, 0)
    assert fixed is not None
    assert (fixed.start_ps, fixed.slow) == ((0, 0, 0, 2_500_000), (1.0,) * 4)
    some = make_skew("rank=1:20,3:5", "rank=0:1.2", 4, 0)
    assert some is not None
    assert (some.start_ps, some.slow) == ((0, 20_000_000, 0, 5_000_000), (1.2, 1.0, 1.0, 1.0))
    assert skew_line(some) == "2 of 4 ranks start late, by 20 us at most, 6.25 us on average; GEMM times: rank 0 x1.2"


def test_normal_draws_follow_the_seed_and_begin_at_zero() -> None:
    one, same, other = (make_skew("normal:10", None, 4000, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert one is not None
    assert min(one.start_ps) == 0
    assert np.std(one.start_ps) == pytest.approx(10e6, rel=0.05)


def test_clocks_spread_around_their_mean_and_the_fastest_rank_has_factor_one() -> None:
    one, same, other = (make_skew(None, "normal:0.05", 4000, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert one is not None
    assert min(one.slow) == 1.0
    clock = 1 / np.array(one.slow)
    assert np.std(clock) / np.mean(clock) == pytest.approx(0.05, rel=0.05)
    assert skew_line(one).startswith("GEMM times: 3999 ranks slower, x1.")
    with pytest.raises(ConfigError, match=r"slow normal: found '0.5', expected a number from 0 to 0.3"):
        make_skew(None, "normal:0.5", 4, 0)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("rank,start_us\n2,7\n0,1.5\n")
    (tmp_path / "f.csv").write_text("rank,factor\n1,1.25\n")
    found = make_skew(str(tmp_path / "s.csv"), str(tmp_path / "f.csv"), 3, 0)
    assert found is not None
    assert (found.start_ps, found.slow) == ((1_500_000, 0, 7_000_000), (1.0, 1.25, 1.0))


@pytest.mark.parametrize(
    ("start", "slow", "message"),
    [
        ("fxed:3", None, r"start: found 'fxed:3'; did you mean \"fixed:US\""),
        ("fixed:", None, "start fixed: found '', expected a number from 0 to 1e\\+06"),
        ("normal:-1", None, "start normal: found '-1', expected a number from 0"),
        ("rank=4:1", None, "start '4:1': found rank '4', expected 0 to 3"),
        ("rank=1:1,1:2", None, "start '1:2': found rank 1 again, expected each rank once"),
        (None, "rank=1:0", "slow '1:0': found '0', expected a number from 0.1 to 100"),
        (None, "rank=1", "slow '1': found '', expected a number"),
        (None, "1.2", "slow: found '1.2'; expected one of"),
        ("nowhere.csv", None, "nowhere.csv: cannot be read"),
    ],
)
def test_wrong_texts_are_refused(start: str | None, slow: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_skew(start, slow, 4, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,factor\n1,2\n", "found columns 'rank,factor', expected 'rank,start_us'"),
        ("", "found columns '', expected 'rank,start_us'"),
        ("rank,start_us\n1,2,3\n", "row 2: found 3 columns, expected 2"),
        ("rank,start_us\n0,1\n9,1\n", "row 3: found rank '9', expected 0 to 3"),
        ("rank,start_us\n0,soon\n", "row 2: found 'soon', expected a number"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_skew(str(tmp_path / "s.csv"), None, 4, 0)


@pytest.mark.parametrize("fidelity", ["burst", "packet"])
def test_both_passes_begin_with_the_start_times(fidelity: str) -> None:
    row = ds.run("deepep", gpus=4, tokens=8, start="rank=2:30", direction="both", fidelity=fidelity)
    assert row.attribution["start_us"] == 60
    for parts in row.waiting_us.values():
        for rank in range(4):
            assert sum(parts[part][rank] for part in ("moving", "resource", "own", "peers")) == pytest.approx(parts["span"][rank])
    # Every rank but the late one idles for it in Dispatch: 30 us in each pass but for its own sends and receives.
    idle = row.waiting_us["dispatch"]["peers"]
    assert all(us > 50 for rank, us in enumerate(idle) if rank != 2)
    assert idle[2] < 1


def test_a_run_says_when_its_ranks_started() -> None:
    even = ds.run("deepep", gpus=4, tokens=16)
    late = ds.run("deepep", gpus=4, tokens=16, start="fixed:40", slow="rank=0:1.5")
    assert even.skew == {}
    assert "skew" not in even.to_dict()
    assert "start_us" not in even.attribution
    told = json.loads(json.dumps(late.to_dict(), allow_nan=False))
    assert told["skew"] == {"start_us": [0, 0, 0, 40], "slow": [1.5, 1, 1, 1]}
    assert told["attribution"]["start_us"] == 40
    assert sum(told["attribution"].values()) == pytest.approx(late.time_us)
    assert late.time_us >= even.time_us + 39
    assert any(line.startswith("skew: 1 of 4 ranks start late, by 40 us at most") for line in late.header)


def test_every_rank_may_have_its_word():
    assert make_skew(None, "rank=0:2,rank=1:1.5", 4, 0) == make_skew(None, "rank=0:2,1:1.5", 4, 0)
