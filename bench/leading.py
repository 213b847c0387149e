"""Estimates from leading tokens beside whole runs: `python bench/leading.py before.csv [--rows whole,estimate]`.

One line for each point of POINTS: the layer time that `advise` or `compare` estimates from leading tokens, and that of all tokens. The rule is that
of the package that is imported, so two versions give two files. The points were written down before the rule ran on any of them
(docs/notebook/2026-11-23-leading-tokens.md).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
import time
from typing import NamedTuple, cast

import dysharp
from dysharp.base.errors import DysharpError
from dysharp.planning.advice.prediction import AdviceRuns
from dysharp.runs.arguments import RequestArgs, arguments_of
from dysharp.runs.options import options_by_system
from dysharp.runs.request import make_request
from dysharp.runs.together import Workers
from dysharp.systems import get_system


class Case(NamedTuple):
    """One layer. `verb`: whose estimate."""

    verb: str
    system: str
    model: str
    cluster: str
    gpus: int
    tokens: int
    routing: str | None
    seed: int


POINTS = (
    Case("advise", "deepep", "deepseek-v3", "hw-dgx-h100-x4", 32, 4096, None, 0),
    Case("advise", "hybrid-ep", "deepseek-v3", "hw-dgx-h100-x4", 32, 4096, None, 0),
    Case("advise", "deepep", "qwen3-235b", "hw-dgx-h100-x4", 32, 2048, None, 1),
    Case("advise", "hybrid-ep", "qwen3-235b", "hw-dgx-h100-x4", 32, 2048, "uniform", 1),
    Case("advise", "megatron-a2a", "deepseek-v3", "hw-dgx-h100-x4", 32, 2048, "uniform", 2),
    Case("advise", "deepep", "deepseek-v3", "hw-dgx-h100-x2", 16, 4096, "powerlaw:0.5", 2),
    Case("advise", "megatron-a2a", "qwen3-235b", "hw-dgx-h100-x2", 16, 4096, None, 3),
    Case("advise", "hybrid-ep", "deepseek-v3", "hw-dgx-h100-x2", 16, 8192, None, 3),
    Case("advise", "tutel", "deepseek-v2-lite", "hw-dgx-h100-x2", 16, 4096, "uniform", 4),
    Case("advise", "deepep", "deepseek-v2-lite", "hw-dgx-h100-x2", 16, 8192, None, 4),
    Case("advise", "deepep", "deepseek-v3", "hw-dgx-h100", 8, 8192, None, 5),
    Case("advise", "hybrid-ep", "deepseek-v3", "hw-dgx-h100", 8, 8192, "uniform", 5),
    Case("advise", "megatron-a2a", "qwen3-235b", "hw-dgx-h100", 8, 8192, "lognormal:0.5", 6),
    Case("advise", "ccfuser", "deepseek-v3", "hw-dgx-h100", 8, 8192, None, 6),
    Case("advise", "hybrid-ep", "qwen3-235b", "hw-dgx-h100", 8, 16384, None, 7),
    Case("advise", "trtllm-a2a", "deepseek-v3", "hw-gb200-nvl72", 32, 2048, None, 7),
    Case("advise", "megamoe", "deepseek-v3", "hw-gb200-nvl72", 32, 2048, None, 8),
    Case("advise", "deepep", "qwen3-235b", "hw-gb200-nvl72", 64, 1024, "uniform", 8),
    Case("advise", "megatron-a2a", "deepseek-v3", "hw-gb200-nvl72", 64, 1024, None, 9),
    Case("advise", "deepep", "mixtral-8x7b", "hw-gb200-nvl72", 8, 32768, None, 9),
    Case("advise", "mori", "deepseek-v3", "hw-mi300x", 8, 8192, None, 10),
    Case("advise", "mori", "deepseek-v3", "hw-mi300x-x2", 16, 4096, None, 10),
    Case("advise", "deepep", "gpt-oss-20b", "hw-dgx-h100", 8, 16384, None, 11),
    Case("advise", "megatron-ag", "deepseek-v2-lite", "hw-dgx-h100-x2", 16, 4096, None, 11),
    Case("compare", "deepep", "deepseek-v3", "hw-dgx-h100-x4", 32, 4096, "uniform", 20),
    Case("compare", "megatron-a2a", "deepseek-v3", "hw-dgx-h100-x4", 32, 4096, None, 20),
    Case("compare", "hybrid-ep", "qwen3-235b", "hw-dgx-h100-x4", 32, 4096, None, 21),
    Case("compare", "deepep", "qwen3-235b", "hw-dgx-h100-x8", 64, 2048, None, 21),
    Case("compare", "megatron-a2a", "qwen3-235b", "hw-dgx-h100-x8", 64, 2048, "uniform", 22),
    Case("compare", "dysharp", "L-8", "paper-dgx-h100-x4", 32, 4096, None, 22),
    Case("compare", "deepep", "L-8", "paper-dgx-h100-x4", 32, 4096, "powerlaw:0.5", 23),
    Case("compare", "megatron-a2a", "M-8", "paper-dgx-h100-x4", 32, 4096, None, 23),
    Case("compare", "hybrid-ep", "M-8", "paper-dgx-h100-x4", 32, 4096, "lognormal:0.5", 24),
    Case("compare", "dysharp", "M-8", "paper-dgx-h100-x4", 32, 4096, "uniform", 24),
    Case("compare", "deepep", "L-16", "paper-dgx-h100-x2", 16, 4096, None, 25),
    Case("compare", "deepep-ll", "M-8", "paper-dgx-h100-x2", 16, 8192, None, 25),
)


def arguments(case: Case) -> RequestArgs:
    """The arguments of a verb."""
    defaults = {name: argument.default for name, argument in arguments_of(RequestArgs).items()}
    own = {name: value for name, value in case._asdict().items() if name not in ("verb", "system")}
    return cast(RequestArgs, {**defaults, **own})


def estimate(case: Case) -> float:
    """The layer time that the verb of the case gives."""
    asked = arguments(case)
    if case.verb == "compare":
        return dysharp.compare([case.system], **asked).rows[0].layer_us
    request = dataclasses.replace(make_request(asked), waiting=False)
    given = options_by_system(request.options, {case.system: get_system(case.system)}, request.model, request.cluster)[case.system]
    with Workers() as workers:
        runs = AdviceRuns(request, workers)
        (found,) = runs.predict([runs.job(case.system, given)])
    if isinstance(found, DysharpError):
        raise found
    return found.time_us


def whole(case: Case) -> float:
    """The layer time of all tokens."""
    return dysharp.run(case.system, **arguments(case)).time_us


def main() -> None:
    """Write a line for each point as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--rows", default="estimate", help="estimate, whole, or both with a comma")
    asked = parser.parse_args()
    wanted = {name: value for name, value in (("estimate", estimate), ("whole", whole)) if name in asked.rows.split(",")}
    with open(asked.file, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*Case._fields, *(f"{name}_{what}" for name in wanted for what in ("us", "cpu_s"))])
        for case in POINTS:
            cells: list[str] = []
            for value in wanted.values():
                begin = time.process_time()
                try:
                    cells += [f"{value(case):.3f}", f"{time.process_time() - begin:.1f}"]
                except DysharpError as error:
                    cells += [str(error), ""]
            out.writerow([*case, *cells])
            file.flush()
            print(*case, *cells, file=sys.stderr)


if __name__ == "__main__":
    main()
