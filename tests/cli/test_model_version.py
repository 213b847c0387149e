"""Every answer of a verb says the version of the simulated numbers: a field of `--json`, words below the screen."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dysharp.base.version import MODEL_VERSION
from dysharp.cli.app import cli

COMMANDS = {
    "serve": "serve llama3-8b --gpus 1 --layouts tp=1",
    "step": "step llama3-8b --cluster hw-dgx-h100 --layout tp=4,pp=2,m=4 --sequence 1024",
    "plan": "plan llama3-8b --cluster hw-dgx-h100 --gpus 8 --batch 8 --try tp=4 --try pp=1 --try mbs=1 --try swap=none",
    "model": "model llama3-8b",
    "run": "run deepep --gpus 4 --tokens 16",
    "compare": "compare --systems deepep,ideal --gpus 4 --tokens 16",
    "collectives": "compare --workload all-reduce:64KiB --cluster hw-dgx-h100 --gpus 4 --systems nccl",
    "advise": "advise deepseek-v2-lite --cluster hw-dgx-h100 --tokens 8 --gpus 4 --systems deepep --set deepep.n_sm=8",
    "libraries": "advise deepseek-v3 --libraries --cluster hw-dgx-h100 --gpus 8 --tokens 64",
    "network": "network --load 0.1 --period 200 --warm-up 1",
    "reproduce": "reproduce area --no-variants",
}


def _asked(command: str, *more: str) -> tuple[str, str]:
    done = CliRunner().invoke(cli, [*command.split(), *more], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize("name", COMMANDS)
def test_json_and_screen_say_the_model_version(name: str) -> None:
    out, _ = _asked(COMMANDS[name], "--json")
    found = json.loads(out)
    assert {one["model_version"] for one in (found if isinstance(found, list) else [found])} == {MODEL_VERSION}
    _, said = _asked(COMMANDS[name])
    assert said.splitlines().count(f"model version {MODEL_VERSION}") == 1
