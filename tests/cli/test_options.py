"""Options of the command line are the arguments of the verbs: same defaults, every argument that can be typed, lists spelled as typed."""

from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner

from dysharp.api import arguments
from dysharp.api.serving import serve
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.cli.flags import options
from dysharp.cli.report import command_line
from dysharp.runs.arguments import AdviseArgs, Argument, RequestArgs, arguments_of

NAMED_ALIKE = ("serve", "step", "plan", "emulate", "network", "validate", "calibrate", "capture")
VERBS: dict[str, type] = {name: getattr(arguments, f"{name.capitalize()}Args") for name in NAMED_ALIKE} | {
    "run": RequestArgs, "compare": RequestArgs, "advise": AdviseArgs, "model": arguments.DescribeArgs, "rtl": arguments.HardwareArgs,
}  # fmt: skip
NO_OPTION = {"tick", "progress", "dump", "show", "begun", "tokenizer", "max_periods", "trace"}
OTHER_DEFAULT = {("advise", "cluster"), ("validate", "jobs")}


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


Dry = Annotated[bool, Argument(False, "only say it.")]


def test_an_option_is_one_line() -> None:
    @click.command()
    @options((RequestArgs, "seed"))
    def command(users: Annotated[int, Argument(1, "users at once.", "N", (1, 64))], *, dry: Dry, **seed: Any) -> None:
        click.echo(f"{users} {dry} {seed}")

    runner = CliRunner()
    assert runner.invoke(command, ["--users", "3", "--dry"]).output == "3 True {'seed': 0}\n"
    assert "65 is not in the range 1<=x<=64" in runner.invoke(command, ["--users", "65"]).output
    told = [option.get_help_record(click.Context(command)) for option in command.params]
    assert told == [
        ("--users N", "Users at once.  [default: 1; 1<=x<=64]"), ("--seed N", "Seed of everything that is drawn.  [default: 0; x>=0]"),
        ("--dry", "Only say it."),
    ]  # fmt: skip


def test_an_argument_checks_its_value() -> None:
    with pytest.raises(ConfigError, match=r"^isl: found 0, expected 1 to 16777216$"):
        serve(isl=0)
    with pytest.raises(ConfigError, match=r"^seed: found -1, expected 0 or more$"):
        Argument(0, "", "N", (0, None)).check("seed", -1)
    Argument(None, "", "N", (1, 2)).check("n", None)


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
