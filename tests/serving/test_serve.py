"""`dysharp serve`: the answer, limits, refusals."""

import json

import pytest

from dysharp import serve
from dysharp.api.serving import Slo, slo_of
from dysharp.errors import ConfigError


def test_two_nodes_of_h200() -> None:
    done = serve("deepseek-v3", "hw-dgx-h200-x2", engine="sglang", slo=Slo(tpot=50.0), users=1000)
    first = done.best[0]
    assert first.served.tpot <= 50e3
    assert all(first.tokens_per_gpu >= point.tokens_per_gpu for point in done.best)
    assert done.gpus_for_users is not None
    assert done.gpus_for_users * first.load.users / first.replica.layout.gpus >= 1000
    assert any("do not" in one.reason or "GB" in one.reason for one in done.rejected)
    assert json.loads(json.dumps(done.to_dict()))["best"][0]["layout"] == first.replica.layout.name
    speeds = [(point.per_user, point.tokens_per_gpu) for point in done.front]
    assert speeds == sorted(speeds, key=lambda pair: -pair[0])
    assert [t for _, t in speeds] == sorted(t for _, t in speeds)


def test_a_whole_rack_has_wide_layouts() -> None:
    done = serve("deepseek-v3", "hw-gb200-nvl72", gpus=72, precision="fp4", engine="trtllm")
    names = {point.replica.layout.name for point in done.points}
    assert {"TP8", "DP72 EP72", "TP8 DP9 EP72"} <= names
    assert len(done.points) > 12 * 12


def test_what_does_not_fit_says_why() -> None:
    done = serve("deepseek-v3", "hw-dgx-h100", precision="bf16", isl=1000, osl=10)
    assert not done.points
    assert "GB" in done.sentences()[0]
    slow = serve("llama3-70b", "hw-dgx-h200", slo=Slo(tpot=0.01), layouts=["tp=8"])
    assert slow.sentences()[0].startswith("No layout keeps")


@pytest.mark.parametrize("text", ["ttft", "ttft=2", "tpot=-1ms", "tpot=xs", "speed=3s"])
def test_bad_limits(text: str) -> None:
    with pytest.raises(ConfigError, match="slo: found"):
        slo_of(text)


def test_limits() -> None:
    assert slo_of("ttft=2s,tpot=50ms") == Slo(2000.0, 50.0)
    assert slo_of("") == Slo()


def test_wrong_input() -> None:
    with pytest.raises(ConfigError, match="engine"):
        serve(engine="vlm")
    with pytest.raises(ConfigError, match="osl"):
        serve(osl=1)
    with pytest.raises(ConfigError, match="gpu"):
        serve(cluster="paper-gh200-nvl32")
