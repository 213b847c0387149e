"""Options that several commands share."""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, get_args

import click

from dysharp.base.errors import ConfigError
from dysharp.runs.arguments import Argument, arguments_of

Command = Callable[..., Any]


Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def complete_words(*words: str) -> Complete:
    """Shell completion from a list of words."""
    return lambda ctx, param, incomplete: [word for word in words if word.startswith(incomplete)]


def complete_from(load: Callable[[], Iterable[str]], *more: str) -> Complete:
    """Shell completion from `more` words and from those of `load`, which may import what other commands do not need."""
    return lambda ctx, param, incomplete: [word for word in (*more, *load()) if word.startswith(incomplete)]


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Shell completion of paths."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")] if incomplete.isprintable() else []  # the terminal prints it


def _complete(what: str) -> Complete:
    """Names after the last comma; a path where no name fits."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from dysharp.cli.listing import names

        begun, comma, last = incomplete.rpartition(",")
        found = [begun + comma + name for name in names(what) if name.startswith(last)]
        return found or ([] if what in ("systems", "settings") else complete_files(ctx, param, incomplete))

    return complete


complete_systems = _complete("systems")
complete_clusters = _complete("clusters")
complete_models = _complete("models")


def words_of(text: str | None) -> list[str] | None:
    """The words of a list such as "a,b"; None for no list."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def numbers_of(flag: str, text: str, expected: str) -> list[int]:
    """The numbers of `3,7`, each once. Raises ConfigError, which says what was `expected`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise ConfigError(f"{flag}: found {text[:60]!r}, expected {expected}")
    return list(dict.fromkeys(map(int, parts)))


def helps(load: Callable[[], Mapping[str, str]], width: int) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback of an eager option: the value "help" prints the words with their texts and ends the command, whatever else is missing."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value == "help" or (isinstance(value, tuple) and "help" in value):
            for word, text in load().items():
                click.echo(f"{word:{width}} {text}")
            ctx.exit()
        return value

    return callback


ENDINGS = (".perfetto-trace", ".perfetto-trace.gz")
"""Of a timeline for Perfetto."""


class Out(click.ParamType[Any]):
    """A file to write, or a folder: refused here, before long work, if it cannot be written."""

    name = "text"

    def __init__(self, *endings: str, folder: bool = False) -> None:
        self.endings, self.folder = endings, folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as it was typed."""
        from dysharp.base.files import check_destination, check_folder

        check_folder(value) if self.folder else check_destination(value, *self.endings)
        return value


def _drawable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """A file that no figure can be written to is refused here, before minutes of work."""
    if path is not None and not ctx.resilient_parsing:
        from dysharp.show.plots import check_format

        check_format(path)
    return path


plot_flag = click.option("--plot", metavar="FILE", callback=_drawable, help="Also draw the answer into FILE (.svg or .png).")


def jobs_flag(text: str, **options: Any) -> Callable[[Command], Command]:
    """`--jobs N`: how many processes run at once."""
    return click.option("-j", "--jobs", type=click.IntRange(1, 256), **({"default": 1, "show_default": True} | options), help=text)


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


class Words(click.ParamType[Any]):
    """A list such as "a,b"."""

    name = "text"

    def __init__(self, separator: str) -> None:
        self.separator = separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The words of a text."""
        return [word.strip() for word in value.split(self.separator) if word.strip()] if isinstance(value, str) else value


def systems_flag(default: str) -> Callable[[Command], Command]:
    """`--systems A,B,...`, which systems a command simulates."""
    return click.option("--systems", type=Words(","), metavar="A,B,...", shell_complete=complete_systems, help=f"Systems.  [default: {default}]")


COMPLETE = {
    "cluster": complete_clusters, "model": complete_models, "systems": complete_systems, "routing": _complete("routings"),
    "options": _complete("settings"), "placement": complete_words("contiguous", "auto", "eplb", "eplb:slots="),
    "workload": complete_words("all-reduce:", "all-gather:", "reduce-scatter:", "all-to-all:", "broadcast:"),
}  # fmt: skip
"""Argument -> completion of its values."""


def options(arguments: type, *only: str, **changes: dict[str, Any] | None) -> Callable[[Command], Command]:
    """An option for each argument of a verb that has one, or for `only`. `changes`: {argument: attributes of its option, or None for no option}."""
    known = arguments_of(arguments)
    kinds = {name: kind.__origin__ for name, kind in arguments.__annotations__.items()}
    named = {f"`{name}`": _flags(name, argument)[0] for name, argument in known.items()}
    asked = only or [name for name, argument in known.items() if argument.shown or kinds[name] is bool]
    made = [_option(name, known[name], kinds[name], named, changes.get(name) or {}) for name in asked if changes.get(name, {}) is not None]
    return lambda command: reduce(lambda done, option: option(done), reversed(made), command)


def _flags(name: str, argument: Argument) -> list[str]:
    return argument.flag.split() or [f"--{name.replace('_', '-')}"]


def _option(name: str, argument: Argument, kind: Any, named: Mapping[str, str], changes: dict[str, Any]) -> Callable[[Command], Command]:
    text, _, otherwise = reduce(lambda told, word: told.replace(word, named[word]), named, argument.text).partition(" None: ")
    argument = argument._replace(shown=changes.get("metavar", argument.shown))
    default, flags = changes.get("default", argument.default), _flags(name, argument)
    given = default is not False and default not in (None, "", ())
    return click.option(*flags, *[name] * flags[-1].startswith("-"), **{
        "default": default, "show_default": given, "metavar": argument.shown or None, "is_flag": kind is bool,
        "type": None if kind is bool else _type(argument, kind), "multiple": name == "options" or (default == () and argument.shown[-3:] != "..."),
        "shell_complete": COMPLETE.get(name) or complete_words(*argument.words),
        "help": text[0].upper() + text[1:] + ("" if given or not otherwise else f"  [default: {otherwise.rstrip('.')}]"),
    } | changes)  # fmt: skip


def _type(argument: Argument, kind: Any) -> Any:
    """How the command line reads a value."""
    if argument.shown.startswith("["):
        return click.Choice(argument.words)
    if argument.shown.endswith("..."):
        return Words(argument.shown[-4])
    number = next((each for each in (int, float) if each in (kind, *get_args(kind))), None)
    if argument.span is None or number is None:
        return number or str
    kinds: dict[type, Any] = {int: click.IntRange, float: click.FloatRange}
    return kinds[number](*argument.span)
