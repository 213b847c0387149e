"""Requests: every format by a sample of our own, real traces where they are at hand, drawn requests, damaged lines in one line."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.serving.replay.formats import servegen
from dysharp.serving.replay.requests import requests_of

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "formats" / "requests"
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
    {"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [1, 4]},
]
AIPERF = [
    {"session_id": "a", "input_length": 1200, "output_length": 400, "hash_ids": [0, 1, 2], "timestamp": 500.0},
    {"session_id": "b", "input_length": 10, "output_length": 5, "hash_ids": [0], "timestamp": 600.0},
    {"session_id": "a", "input_length": 512, "output_length": 30, "hash_ids": [3], "delay": 100.0},
]
WEKA = {
    "id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 2.0, "think_time": 0.0},
        {"t": 4.0, "type": "subagent", "duration_ms": 3000, "requests": [
            {"t": 0.0, "type": "s", "in": 70, "out": 3, "hash_ids": [8], "api_time": 1.0, "think_time": 0.0},
            {"t": 1.5, "type": "s", "in": 140, "out": 3, "hash_ids": [8, 9], "api_time": 1.5, "think_time": 0.5},
        ]},
        {"t": 8.0, "type": "n", "in": 200, "out": 5, "hash_ids": [1, 2, 3], "api_time": 2.0, "think_time": 6.0},
        {"t": 15.0, "type": "n", "in": 260, "out": 5, "hash_ids": [1, 2, 3, 4], "api_time": 2.0, "think_time": 5.0},
    ],
}  # fmt: skip


def lines(path: Path, *rows: object) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


def test_mooncake(tmp_path: Path) -> None:
    found = requests_of(lines(tmp_path / "a.jsonl", *MOONCAKE))
    assert [row[:4] for row in found.rows] == [(0.0, 1100, 7, (1, 2, 3)), (3.0, 600, 9, (1, 4))]
    assert (found.block, found.prompt, found.output) == (512, 850, 8)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert requests_of(f"{tmp_path / 'b.jsonl.gz'},n=1,speed=2").rows == found.rows[:1]
    fast = requests_of(f"{tmp_path / 'a.jsonl'},speed=2,users=1")
    assert (fast.rows[1].arrive, fast.users) == (1.5, 1)


def test_aiperf_later_turns_have_their_history(tmp_path: Path) -> None:
    first, other, second = requests_of(lines(tmp_path / "a.jsonl", *AIPERF)).rows
    assert (first.arrive, first.prompt, other.after, second.after, second.pause) == (0.5, 1200, -1, 0, 0.1)
    assert second.prompt == 1200 + 400 + 512
    assert first.hashes[:2] == (0, 1)
    assert first.hashes == second.hashes[: len(first.hashes)]  # the output is a prefix of the next turn
    assert len(first.hashes) == 1600 // 512


def test_weka_sessions_and_their_agents(tmp_path: Path) -> None:
    rows = requests_of(lines(tmp_path / "a.json", WEKA, WEKA)).rows
    assert [(row.prompt, row.after, row.pause) for row in rows[:5]] == [(130, -1, 0.0), (70, 0, 2.0), (140, 1, 0.5), (200, 2, 1.0), (260, 3, 5.0)]
    assert rows[5].after == -1
    assert rows[6].after == 5
    assert not set(rows[0].hashes) & set(rows[5].hashes)  # names of two sessions are different blocks


def test_azure_and_lengths(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 23:59:59.9000000,374,44", "2023-11-17 00:00:01.1500001,396,109"
    found = requests_of(lines(tmp_path / "a.csv", *text))
    assert [row[1:3] for row in found.rows] == [(374, 44), (396, 109)]
    assert found.rows[1].arrive == pytest.approx(1.2500001)
    table = lines(tmp_path / "b.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "3772,54,3826,69.85", "2015,156,2171,12.9")
    assert [row[1:3] for row in requests_of(f"{table},users=2").rows] == [(3772, 54), (2015, 156)]
    assert requests_of(f"{table},rate=2").rows[0].arrive > 0
    with pytest.raises(ConfigError, match="found no times, expected users=N or rate=R"):
        requests_of(table)


def test_servegen_draws_the_rate_and_the_tokens(tmp_path: Path) -> None:
    held = {"0": {"input_tokens": "{}", "output_tokens": "{}"}, "21600": {"input_tokens": "{100: 0.25, 200: 0.75}", "output_tokens": "{7: 1.0}"}}
    (tmp_path / "x-dataset.json").write_text(json.dumps(held))
    rows = requests_of(lines(tmp_path / "x-trace.csv", "0,0,0,,0,0", "21600,4.0,1,Gamma,1.0,0.25", "22200,2.0,5,Weibull,0.5,1")).rows
    first = [row for row in rows if row.arrive < servegen.PERIOD]
    assert len(first) / servegen.PERIOD == pytest.approx(4.0, rel=0.1)
    assert (len(rows) - len(first)) / servegen.PERIOD == pytest.approx(2.0, rel=0.3)
    assert {row.prompt for row in rows} == {100, 200}
    assert {row.output for row in rows} == {7}
    assert np.mean([row.prompt for row in rows]) == pytest.approx(175, rel=0.05)
    (tmp_path / "x-dataset.json").unlink()
    with pytest.raises(ConfigError, match="json: cannot be read: No such file"):
        requests_of(str(tmp_path / "x-trace.csv"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**MOONCAKE[0], "input_length": -1}], "line 1: input_length: found -1, expected a whole number from 1 on"),
        ([MOONCAKE[0], {**MOONCAKE[1], "timestamp": "x"}], "line 2: timestamp: found 'x', expected a number from 0 on"),
        ([MOONCAKE[0], '{"timestamp": 3, "input_len'], "line 2: .*"),
        ([MOONCAKE[0], "xyz"], "line 2: found .*, expected an object of JSON"),
        (["0,0,0,,0,0", "1,2,3,Gamma,1,1"], "found a ServeGen client, expected a name with trace.csv and dataset.json beside it"),
        ([MOONCAKE[0], {**MOONCAKE[1], "hash_ids": [1, "a"]}], "line 2: hash_ids: found .*, expected a list of whole numbers"),
        ([MOONCAKE[1], MOONCAKE[0]], "found times that go back, expected requests in order of arrival"),
        ([{**AIPERF[0], "session_id": None}], "line 1: session_id: found None, expected a name"),
        ([{**WEKA, "block_size": 16}], "line 1: block_size: found 16, expected 64"),
        ([{**WEKA, "requests": [{**WEKA["requests"][0], "t": 10**400}]}], "line 1: t: found 1.*, expected a number from 0 on"),
        ([{**WEKA, "requests": 3}], "line 1: requests: found 3, expected a list of objects"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,3,4"], "line 2: TIMESTAMP: found 'yesterday', expected a date and a time of day"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 23:59:59.9,3"], "line 2: found .*, expected 3 columns"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "found no request, expected at least one"),
        (["what,is,this"], "line 1: found .*, expected Mooncake trace, AIPerf sessions"),
        ([], "found 'None', expected Mooncake trace"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, rows: list[object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        requests_of(lines(tmp_path / "a", *rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate=2,users=3", "found both or none of rate and users"), ("isl=3", "found both or none of rate and users"),
        ("rate=x", "requests: rate: found 'x', expected a number above 0"), ("rat=3", "requests: found 'rat=3'.*rate"),
        ("rate=1,n=0", "requests: n: found '0', expected an integer above 0"), ("rate=1,n=1e12", "requests: n: found '1e12'"),
        ("/no/such/file", "cannot be read"), ("users=2.5", "requests: users: found '2.5', expected an integer above 0"),
        ("users=4,burst=3", "found burst=3, expected it with rate"), ("rate=2,pause=4", "found pause=4, expected it with turns above 1"),
        ("rate=2,ratio=2", "found ratio=2, expected it at most 1"), ("rate=2,ratio=0.5,spread=1", "found ratio=0.5, expected it .* without spread"),
    ],
)  # fmt: skip
def test_texts_that_say_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        requests_of(text)


@pytest.mark.parametrize(("text", "default"), [("users=4", "burst=1"), ("rate=2", "pause=0"), ("rate=2,spread=1", "ratio=1")])
def test_a_default_may_be_said(text: str, default: str) -> None:
    assert requests_of(f"{text},{default}").rows == requests_of(text).rows


def test_a_file_comes_at_a_rate_or_from_users(tmp_path: Path) -> None:
    text = lines(tmp_path / "a", {"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": []})
    with pytest.raises(ConfigError, match="found both rate and users, expected one of them"):
        requests_of(f"{text},rate=4,users=3")


def test_drawn_requests_have_their_means() -> None:
    found = requests_of("rate=5,isl=200,osl=50,spread=0.8,n=20000,burst=3")
    gaps = np.diff([row.arrive for row in found.rows])
    assert gaps.mean() == pytest.approx(0.2, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(3, rel=0.1)
    assert found.prompt == pytest.approx(200, rel=0.03)
    assert found.output == pytest.approx(50, rel=0.03)
    assert requests_of("rate=5,n=50").rows == requests_of("rate=5,n=50").rows != requests_of("rate=5,n=50,seed=1").rows
    assert requests_of("rate=5,n=9").prompt == 4096


def test_turns_have_their_history_and_share_their_head() -> None:
    found = requests_of("users=2,n=3,turns=3,isl=40,osl=20,shared=64,pause=2")
    assert [row.prompt for row in found.rows[:3]] == [104, 164, 224]
    assert [row.after for row in found.rows] == [-1, 0, 1, -1, 3, 4, -1, 6, 7]
    first, later = found.rows[0], found.rows[3]
    assert first.hashes[:4] == later.hashes[:4] == (0, 1, 2, 3)
    assert first.hashes[4] != later.hashes[4]
    assert found.rows[1].hashes[: len(first.hashes)] == first.hashes
    assert len(first.hashes) == 124 // 16
    assert found.users == 2
    assert found.block == 16


MEANS = {
    "mooncake_conversation.jsonl.gz": (12031, 12035, 343), "mooncake_synthetic.jsonl.gz": (3993, 15325, 149),
    "azure_2023_conv.csv.gz": (19366, 1155, 211),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANS)
def test_real_traces_have_the_requests_of_their_pages(name: str) -> None:
    if not (TRACES / name).exists():
        pytest.skip("the trace is not at hand")
    found = requests_of(str(TRACES / name))
    assert (len(found.rows), round(found.prompt), round(found.output)) == MEANS[name]


def test_every_session_that_is_at_hand_is_read() -> None:
    files = sorted(TRACES.glob("weka_trace_*.json"))
    if not files:
        pytest.skip("no session is at hand")
    for file in files:
        held, found = json.loads(file.read_text()), requests_of(str(file))
        assert sum(row.prompt for row in found.rows) == held["totals"]["combined_tokens"]["input"]
        assert sum(row.output for row in found.rows) == held["totals"]["combined_tokens"]["output"]
