"""Bars of `explain`: `python bench/explain.py [DIR]`. DIR: profiles of real runs (default ../shared/data/profiles), read where they lie.

Every file is explained or refused with a reason; share of time that is recognised; of DeepSeek-V3's training profile the errors by operator, the part
of its time within 15 %, and the overlap; the pair of one script on two machines; five planted causes; speed on a profile that is repeated.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dysharp
from dysharp.api.explaining import Difference, Explanation
from dysharp.base.errors import ConfigError
from dysharp.profiles.recognise import EXCHANGES
from tests.profiles.made import run_of, write
from tests.profiles.test_explain import PLANTED, TOKENS

DEEPSEEK, PAIR = "deepseek_v3_train_h800", ("h100_qwen1.5_0.5b", "mi300_qwen1.5_0.5b")
OPTIONS = {
    DEEPSEEK: {"model": "deepseek-v3", "layout": "ep=64,gpus=64"}, "sglang_qwen3_8b_decode": {"model": "qwen3-8b", "batch": 32.0},
    "vllm_decode_full_graph": {"cluster": "hw-mi300x"}, "hta_sampled_rank_0": {"cluster": "hw-dgx-h100"},
    "hta_sampled_rank_1": {"cluster": "hw-dgx-h100"}, "hta_mi250_minitoy_train": {"cluster": "hw-mi300x"},
}  # fmt: skip
REPEATED = 60


def main() -> None:
    """Print every bar."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data/profiles")
    found = {file.name.partition(".json")[0]: file for file in sorted(folder.glob("*.json.gz"))}
    for name, file in found.items():
        try:
            done = dysharp.explain(file, **OPTIONS.get(name, {}))
        except ConfigError as error:
            print(f"{name}: refused: {str(error).rpartition('.gz: ')[2]}")
            continue
        assert isinstance(done, Explanation)
        below = sum(one.below_floor for one in done.operators)
        computing = [one for one in done.operators if one.operator not in EXCHANGES]  # an exchange's time holds waits for other ranks
        near = f"{done.within:.0%} of judged time ({replace(done, operators=tuple(computing)).within:.0%} of what computes)"
        print(f"{name}: recognised {done.recognised:.1%}, within 15 % {near}, {below} kernels below a floor; "
              f"{done.losses[0].text if done.losses else 'no loss'}")  # fmt: skip
        if name == DEEPSEEK:
            print(f"  beside computing: {done.hidden_us / done.exchange_us:.1%} of exchanges")
            for one in done.operators:
                if one.expected:
                    print(f"  {one.operator}: {one.us:,.0f} us measured, {one.expected:,.0f} expected ({one.expected / one.us - 1:+.0%})")
    if all(name in found for name in PAIR):
        pair = dysharp.explain(*(found[name] for name in PAIR))
        assert isinstance(pair, Difference)
        print(f"pair: {pair.line}")
    with tempfile.TemporaryDirectory() as text:
        named = 0
        for planted, (asked, *words) in PLANTED.items():
            files = write(Path(text), run_of(tokens=TOKENS if planted else 16, planted=planted))
            told = dysharp.explain(*files, **asked)
            named += isinstance(told, Explanation) and all(word in told.losses[0].text for word in words)
        print(f"planted causes named first: {named} of {len(PLANTED)}")
        (trace,) = run_of(1)
        trace["traceEvents"] *= REPEATED * 100
        big = Path(text) / "big.json"
        big.write_text(json.dumps(trace))
        begin = time.perf_counter()
        dysharp.explain(big)
        print(f"{big.stat().st_size / 1e6:.0f} MB explained in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
