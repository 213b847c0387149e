"""Options of the command line are the arguments of the verbs: same defaults, every argument that can be typed, lists spelled as typed."""

from typing import Any

import click
import pytest

from dysharp.api.arguments import EmulateArgs, PlanArgs, ServeArgs, StepArgs
from dysharp.cli.app import cli
from dysharp.cli.report import command_line
from dysharp.runs.arguments import RequestArgs, SharedArgs, arguments_of

VERBS: dict[str, type] = {
    "run": RequestArgs, "compare": RequestArgs, "advise": SharedArgs, "serve": ServeArgs, "step": StepArgs, "plan": PlanArgs, "emulate": EmulateArgs,
}  # fmt: skip
NO_OPTION = {"tick", "progress", "dump", "show"}
OTHER_DEFAULT = {("advise", "cluster")}


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_is_an_option_with_its_default(verb: str) -> None:
    command = cli.commands[verb]
    context = click.Context(command)
    options = {parameter.name: parameter for parameter in command.params}
    for name, argument in arguments_of(VERBS[verb]).items():
        if name in NO_OPTION:
            assert not argument.shown
            continue
        option = options["settings" if name == "options" else name]
        default = option.get_default(context)
        if (verb, name) not in OTHER_DEFAULT and name != "options":
            assert (default or None) == (argument.default or None), name
        assert isinstance(option, click.Option)
        assert "`" + name + "`" not in (option.help or ""), "an option is named as it is typed"


@pytest.mark.parametrize(
    "words",
    [["compare", "--systems", "deepep,dysharp"], ["compare", "--set", "a.b=1", "--set", "c.d=2", "--seed", "3"],
     ["serve", "--layouts", "tp=8;dp=8,ep=8", "--merged", "deepseek-v3"], ["plan", "--gpus", "8", "--try", "tp=1,2", "--try", "pp=1", "m"]],
)  # fmt: skip
def test_a_command_is_spelled_as_it_was_typed(words: list[str]) -> None:
    command: Any = cli.commands[words[0]]
    context = command.make_context(words[0], list(words[1:]), parent=click.Context(cli, info_name="dysharp"))
    told = command_line(context).replace("'", "").split()
    assert told[0] == "dysharp"
    assert sorted(told[1:]) == sorted(words)
