"""`dysharp network`: what it prints, what it refuses, how it exits."""

import csv
import json
from pathlib import Path

import pytest

import dysharp as ds
from dysharp.api.network_curve import _curve_setting, _network_setting, _parse_delays, _parse_loads, _parse_traffic
from dysharp.base.errors import ConfigError
from dysharp.base.version import MODEL_VERSION
from dysharp.engine.flit.curves import _setting, read_curves

SHORT = ("--period", "400")
POINT = {"load", "injected", "accepted", "latency_cycles", "network_latency_cycles", "hops", "saturated", "n_packets", "digest"}


def test_json_has_the_promised_fields(dysharp):
    dysharp("network", "--load", "0.1", *SHORT)  # kernels may compile here, which is said on stderr
    done = dysharp("network", "--load", "0.1,0.9", "--packet-flits", "9", "--period", "3000", "--json")
    assert done.code == 0
    assert done.err == f"model version {MODEL_VERSION}\n"
    result = json.loads(done.out)
    assert set(result) >= {"points", "flits_per_s", "config", "traffic", "saturation"}
    assert result["flits_per_s"] > 0
    first, last = result["points"]
    assert set(first) >= POINT
    assert (first["load"], first["saturated"], last["saturated"]) == (0.1, False, True)
    assert first["latency_min_cycles"] == 14


def test_table_is_for_people(dysharp):
    done = dysharp("network", "--cluster", "paper-gh200-nvl32", "--load", "0.3", *SHORT)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 100
    words = ("64 terminals; a cycle is 640 ps", "16 virtual channels x 256 flits, speed-up 2", "packets of 9 flits", "ns", "flits/s simulated")
    for text in words:
        assert text in " ".join(done.out.split())
    assert "saturated:" not in done.out
    full = dysharp("network", "--load", "0.9", "--packet-flits", "9", "--period", "3000")
    assert "saturated: less than 97 % of the load is carried" in " ".join(full.out.split())


def test_the_same_arguments_give_the_same_points(dysharp):
    def digests(*more: str) -> list[str]:
        return [p["digest"] for p in json.loads(dysharp("network", "--load", "0.2,0.5", *SHORT, "--json", *more).out)["points"]]

    assert digests() == digests()
    assert digests() != digests("--seed", "2")


def test_speed_up_is_what_carries_line_rate():
    """16 virtual channels x 256 flits, 9-flit packets: about 0.95 and more with speed-up 2, near 0.65 without (docs/network.md)."""
    two = ds.network(0.95, curve="xbar8_v16b256_p9_int2", period=3000)
    one = ds.network(0.95, curve="xbar8_v16b256_p9", period=3000)
    assert two.points[0].accepted > 0.93
    assert one.points[0].accepted < 0.72


def test_a_measurement_before_the_first_packet_arrives_is_told():
    """It said "The network carries load 0, does not carry 0.00625" of a switch that carries 0.99."""
    short, long = (ds.network(0.1, cluster="paper-gh200-nvl32", period=period) for period in (200, 400))
    assert [p.saturated for p in (*short.points, *long.points)] == [True, False]
    told = "measured from cycle 600 on, but a packet takes 793 cycles or more: rates are too low; expected a longer --period"
    assert short.notes == [f"warning: {told}"]
    assert long.notes == []


def test_saturation_is_found():
    done = ds.network(0.2, packet_flits=1, saturation=True, period=1500)
    assert done.saturation is not None
    assert done.saturation["accepted"] == pytest.approx(0.683, rel=0.02)
    assert done.saturation["saturated_at"] - done.saturation["load"] <= 1 / 128
    assert [p.load for p in done.points] == sorted(p.load for p in done.points)
    free = ds.network(0.2, pattern="bitcomp", saturation=True, period=400)
    assert free.saturation is not None
    assert (free.saturation["load"], len(free.points)) == (1.0, 2)


def test_plot_is_written(dysharp, tmp_path):
    for ending in ("svg", "png"):
        path = tmp_path / f"curve.{ending}"
        assert dysharp("network", "--load", "0.1,0.5,0.9", *SHORT, "--plot", str(path)).code == 0
        assert path.stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 2


def test_a_deadlock_names_who_waits(dysharp):
    done = dysharp("network", "--topology", "ring", "--k", "5", "--vcs", "1", "--packet-flits", "9", "--load", "0.9")
    assert done.code == 1
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "dysharp: error: deadlock at cycle" in done.err
    assert "waits for router[" in done.err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--vcs 0", "router.num_vcs is 0, expected a whole number from 1 to 64"),
        ("--buffer 0", "router.vc_buf_size is 0"),
        ("--load 1.2", "load: found 1.2, expected flits per cycle and terminal above 0 and at most 1"),
        ("--load 0", "load: found 0, expected"),
        ("--load x", "load: found 'x', expected loads such as"),
        ("--load 0.1:0.9:0", "expected loads such as"),
        ("--load 0.1:0.9:0.00001", "expected loads such as"),
        ("--load nan", "load: found nan"),
        ("--pattern permutation:1,0,9,2,4,5,6,7", "traffic.targets[2] is 9, expected a terminal from 0 to 7: nothing routes there"),
        ("--pattern permutation:1,0", "traffic.targets has 2 entries, expected one for each of 8 terminals"),
        ("--pattern transpos", 'did you mean "transpose"?'),
        ("--pattern transpose", "found 8 terminals, expected a power of four"),
        ("--pattern uniform:3", "expected no values with uniform"),
        ("--pattern hotspot:a", "expected numbers, such as hotspot:4"),
        ("--burst 5", "burst: found '5', expected ON:OFF"),
        ("--burst 1:9 --load 0.5", "needs 5 packets per cycle while on"),
        ("--topology torus", "network.topology is 'torus'; expected one of fattree, fly, ring"),
        ("--k 65", "a router has 65 ports"),
        ("--delays vc", "delays: found 'vc', expected vc=CYCLES"),
        ("--delays vcs=2", "delays: found 'vcs'; did you mean \"vc\"?"),
        ("--delays switch=0", "router.sw_alloc_delay is 0"),
        ("--allocator islipp", 'did you mean "islip"?'),
        ("--speedup 0", "router.internal_speedup is 0"),
        ("--lanes 5", "router.input_speedup is 5, expected at most num_vcs = 4"),
        ("--curve xbar8_v4b8_p9_in2", 'did you mean "int2"?'),
        ("--curve xbar8", "expected a name such as"),
        ("--curve xbar8_v4b8_p1 --cluster paper-gh200-nvl32", "expected one of the two"),
        ("--cluster paper-gh200", "did you mean"),
        ("--cluster paper-nvl72", "found a switch of 72 ports, expected at most 64; set k"),
        ("--seed -1", "'--seed': -1 is not in the range x>=0"),
        ("--period 0", "'--period': 0 is not in the range 1<=x<=1000000"),
        ("--warm-up 0", "'--warm-up': 0 is not in the range 1<=x<=10000"),
        ("--plot out.pdf", "expected .svg or .png"),
        ("--every 2", "found no --compare"),
        ("--compare no.csv", "cannot be read"),
        ("--compare no.csv --vcs 2 --load 0.5 --warm-up 3", "found --load, --vcs, --warm-up, expected only --curve"),
        ("--compare no.csv --every 0", "expected every at least 1"),
    ],
)
def test_wrong_input_is_one_line(dysharp, line, text):
    done = dysharp("network", *line.split())
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert text in done.err


def test_loads_and_delays_as_text():
    assert _parse_loads("0.5,0.1,0.5") == (0.1, 0.5)
    assert len(_parse_loads("0.05:0.95:0.05")) == 19
    assert _parse_loads("0.05:0.95:0.05")[-1] == 0.95
    assert _parse_delays("link=3, credit=0") == {"link": 3, "credit": 0}
    assert _parse_traffic("hotspot:4,2", 9, "10:30").burst == (10.0, 30.0)
    chosen = _network_setting(cluster="paper-gh200-nvl32", vcs=4, delays="terminal=7", pattern="bitcomp")
    assert (chosen.config.router.num_vcs, chosen.config.terminal_delay, chosen.traffic.packet_flits) == (4, 7, 9)
    assert _network_setting(cluster="paper-nvl72", k=64).config.k == 64
    with pytest.raises(ConfigError, match="above 0"):
        ds.network([0.5, 2.0])


def test_names_of_recorded_curves_say_what_they_are():
    for name, rows in read_curves().items():
        config, traffic, _, _ = _setting(rows[0])
        ours = _curve_setting(name)
        assert ours.config == config
        assert (ours.traffic.pattern, ours.traffic.packet_flits) == (traffic.pattern, traffic.packet_flits)


@pytest.mark.slow
def test_comparison_and_its_exit_code(dysharp, tmp_path: Path):
    done = dysharp("network", "--compare", "--curve", "xbar8_v4b8_p9_int2", "--every", "12")
    assert done.code == 0
    assert done.out.startswith("1 of 1 curves within the bars")
    assert "3 of 3 rows are equal to the recorded rows in all digits" in done.out
    wrong = tmp_path / "wrong.csv"
    rows = read_curves()["xbar8_v1b64_p9"]
    for row in rows:
        row["packet_latency_avg"] = str(1.1 * float(row["packet_latency_avg"]))
    with wrong.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    done = dysharp("network", "--compare", str(wrong), "--every", "12", "--json")
    assert done.code == 1
    assert done.err == f"model version {MODEL_VERSION}\ndysharp: xbar8_v1b64_p9: error outside the bars\n"
    result = json.loads(done.out)
    assert (result["holds"], result["bars"]["mean_error"]) == (False, 0.03)
    assert result["curves"][0]["mean_error"] == pytest.approx(0.1 / 1.1, rel=0.01)
    assert dysharp("network", "--compare", "--curve", "xbar9").code == 2


def test_arguments_reach_their_fields_and_others_are_refused() -> None:
    config = _network_setting(vcs=2, lanes=2, allocator="islip", hold_switch=True, speculative=False, topology="fattree", k=4, n=2).config
    router = config.router
    assert (config.topology, config.k, config.n, router.num_vcs, router.input_speedup, router.output_speedup) == ("fattree", 4, 2, 2, 2, 2)
    assert (router.vc_allocator, router.sw_allocator, router.hold_switch, router.speculative) == ("islip", "islip", True, False)
    with pytest.raises(ConfigError, match="num_vcs is 0"):
        _network_setting(vcs=0)
    with pytest.raises(ConfigError, match="found the argument 'bufer'; did you mean \"buffer\""):
        _network_setting(bufer=4)
