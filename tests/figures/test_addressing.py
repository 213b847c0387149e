"""Figure 19: payload efficiency two ways, and what is claimed of explicit addressing."""

import json
import re

import pytest

from dysharp.base.errors import ConfigError
from dysharp.cli import main
from dysharp.figures import Point, Store, judge, load_figure, run_points
from dysharp.figures.origin import origin_of
from dysharp.isa.efficiency import FORMATS, closed_efficiency, encoded_efficiency
from dysharp.isa.framing import pull_train

# Worked by hand from the packet formats (docs/design/0004), percent: ideal, lean copies, a flit on every copy, seven and eight addresses more
TABLE = {
    16: (33.3, 32.1, 25.0, 22.0, 20.9),
    32: (50.0, 48.6, 40.0, 36.0, 34.6),
    64: (66.7, 65.5, 57.1, 52.9, 51.4),
    128: (80.0, 79.1, 72.7, 69.2, 67.9),
    256: (88.9, 88.3, 84.2, 81.8, 80.9),
}


@pytest.mark.parametrize("granularity", TABLE)
def test_the_table_of_the_spec_two_ways(granularity: int) -> None:
    for name, expected in zip(FORMATS, TABLE[granularity], strict=True):
        assert 100 * closed_efficiency(name, granularity) == pytest.approx(expected, abs=0.05)
        assert encoded_efficiency(name, granularity) == closed_efficiency(name, granularity)


@pytest.mark.parametrize("targets", [1, 2, 8, 9, 31])
@pytest.mark.parametrize("payload_bytes", [1, 16, 100, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_both_ways_agree_for_any_size(name: str, payload_bytes: int, targets: int) -> None:
    assert encoded_efficiency(name, payload_bytes, targets) == closed_efficiency(name, payload_bytes, targets)


@pytest.mark.parametrize("name", ["ideal", "dysharp", "explicit"])
def test_a_read_reduce_mirrors_the_store(name: str) -> None:
    train = pull_train(FORMATS[name].framing, 128, 8)
    flits = (train.up + train.result + 8 * (train.down + train.response)) // 16
    assert 72 / flits == pytest.approx(closed_efficiency(name, 128))


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="packet format 'explict'; did you mean \"explicit\""):
        closed_efficiency("explict", 128)
    for call in (closed_efficiency, encoded_efficiency):
        with pytest.raises(ConfigError, match="found 300 bytes to 8 targets"):
            call("ideal", 300)
    whole = (("format", "ideal"), ("granularity", 16))
    for options, text in (
        ((), "format: missing | granularity: missing"),
        (whole[:1], "granularity: missing"),
        ((*whole[:1], ("granularity", True)), "granularity: found True, expected a valid integer"),
        ((*whole, ("x", 1)), "x: unknown key"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f": option: {text}")):
            origin_of("packet-format").row(Point("packet-format", "L-8", "paper-gh200-nvl32", "", options=options))


def test_fig19a_is_reproduced(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "fig19a", "--json", "--store", str(tmp_path)])
    assert stop.value.code == 0
    (figure,) = json.loads(capsys.readouterr().out)
    assert figure["verdict"] == "holds"
    rows = {r["point"]: r for r in figure["rows"]}
    assert rows["ideal: L-8 format=ideal granularity=128"]["ours"] == pytest.approx(80)
    assert rows["explicit addressing: L-8 format=explicit granularity=128"]["ours"] == pytest.approx(69.23, abs=0.01)
    assert rows["efficiency: L-8 format=dysharp granularity=128"]["ours"] == pytest.approx(79.12, abs=0.01)
    assert {r["verdict"] for r in figure["rows"]} == {"set after", "fitted", "cannot fail", ""}


def test_a_wrong_efficiency_does_not_hold(tmp_path) -> None:
    figure = load_figure("fig19a")
    rows, failed = run_points(figure.points, Store(tmp_path))
    assert not failed
    assert judge(figure, rows)[1]
    wrong = {p: row | {"payload_efficiency": row["payload_efficiency"] - 1.0} for p, row in rows.items()}
    assert not judge(figure, wrong)[1]
    assert not judge(figure, {p: row | {"encoded_over_closed": 1.01} for p, row in rows.items()})[1]


@pytest.mark.parametrize("name", ["fig19b", "fig19c"])
def test_explicit_addressing_has_no_published_numbers(name: str) -> None:
    figure = load_figure(name)
    assert all(check.paper is None for check in figure.checks)
    assert {p.system for p in figure.points} >= {"explicit", "dysharp"}
    assert all(dict(p.options).get("compute", True) is (name == "fig19c") for p in figure.points)
