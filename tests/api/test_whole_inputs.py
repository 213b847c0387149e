"""What the verbs of whole models take beside names and files: a `WholeModel`, and limits as text."""

import pytest

import dysharp
from dysharp.base.errors import ConfigError


def test_step_takes_a_whole_model() -> None:
    asked = {"cluster": "paper-gh200-nvl32", "layout": "tp=2,m=2", "sequence": 256}
    named, loaded = (dysharp.step(model, **asked) for model in ("llama3-8b", dysharp.load_whole("llama3-8b")))
    assert loaded.best.step_us == named.best.step_us


@pytest.mark.parametrize("verb", [dysharp.step, dysharp.serve])
def test_a_layer_is_refused_with_the_way_to_a_whole_model(verb: object) -> None:
    assert callable(verb)
    with pytest.raises(ConfigError, match=r"model: found Model.*, expected text or a WholeModel of `dysharp\.load_whole`"):
        verb(dysharp.load_model("mixtral-8x7b"))


def test_serve_takes_limits_as_text_or_in_milliseconds() -> None:
    asked = {"cluster": "hw-dgx-h200", "layouts": ["tp=8"], "isl": 1000, "osl": 100}
    written, given = (dysharp.serve("llama3-8b", slo=slo, **asked) for slo in ("ttft=1s,tpot=20ms", dysharp.Slo(ttft=1000, tpot=20)))
    assert written.slo == given.slo == dysharp.Slo(1000.0, 20.0)
    assert written.best[0].tokens_per_gpu == given.best[0].tokens_per_gpu
    with pytest.raises(ConfigError, match=r"slo: found ttft 2000\.0 and tpot -1, expected milliseconds above 0"):
        dysharp.Slo(tpot=-1)
    with pytest.raises(ConfigError, match="slo: found 'tpot=20'"):
        dysharp.serve("llama3-8b", slo="tpot=20", **asked)
