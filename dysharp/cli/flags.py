"""Options that several commands share."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce, wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints, is_typeddict

import click

from dysharp.base import ByName, ConfigError, Texts, read_toml
from dysharp.runs.arguments import Argument, arguments_of, meaning_of

TABLE = read_toml(Path(__file__).with_name("arguments.toml"))
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


def refuse_others(where: str, takes: Collection[str], expected: str) -> None:
    """ConfigError for options of the command line that are not in `takes`: `where` would ignore them."""
    ctx = click.get_current_context()
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE and name not in takes]
    if others := sorted(one.opts[0] for one in ctx.command.params if one.name in given):
        raise ConfigError(f"{where}: found {', '.join(others)}, expected {expected}")


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


WRITTEN = {"type": Out()}
"""Attributes of an option whose value is a file to write."""


def _drawable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """A file that no figure can be written to is refused here, before minutes of work."""
    if path is not None and not ctx.resilient_parsing:
        from dysharp.show.plots import check_format

        check_format(path)
    return path


Plot = Annotated[str | None, Argument(None, "also draw the answer into FILE (.svg or .png).", "FILE"), {"callback": _drawable}]
Json = Annotated[bool, Argument(False, "print JSON instead of a table.", flag="--json")]


def _imported(ctx: click.Context, param: click.Parameter, sources: Texts) -> None:
    if sources and not ctx.resilient_parsing:
        from dysharp.systems.registry import import_systems

        for source in sources:
            import_systems(source)


_IMPORT = "Import this first, so that it registers a system of your own; repeatable."
import_flag = click.option("--import", metavar="FILE|MODULE", multiple=True, expose_value=False, is_eager=True, callback=_imported, help=_IMPORT)


def file_of(path: str, said: Texts) -> Any:
    """A file of rows or of a log, with what was said of it."""
    from dysharp.measured.formats import Given
    from dysharp.runs.options import parse_set

    return Given(path, parse_set(said)) if said else path


def draw(path: str | None, figure: str, *answer: Any, **how: Any) -> None:
    """Draw an answer into the file of `--plot`, if there is one, with `figure`: a module and a function of `dysharp.show`, loaded only then."""
    if path is not None:
        from dysharp.show.plots import save_figure

        module, _, function = figure.rpartition(".")
        save_figure(getattr(import_module(f"dysharp.show.{module}"), function)(*answer, **how), path)


class Words(click.ParamType[Any]):
    """A list such as "a,b"."""

    name = "text"

    def __init__(self, separator: str) -> None:
        self.separator = separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The words of a text."""
        return [word.strip() for word in value.split(self.separator) if word.strip()] if isinstance(value, str) else value


COMPLETE = {
    "cluster": complete_clusters, "model": complete_models, "systems": complete_systems, "baseline": complete_systems, "base": complete_clusters,
    "schedule": complete_words("1f1b", "dualpipe", "dualpipev", "interleaved", "zb-h1", "zbv"), "routing": _complete("routings"),
    "options": _complete("settings"), "placement": complete_words("contiguous", "auto", "eplb", "eplb:slots=", "exact"),
    "workload": complete_words("all-reduce:", "all-gather:", "reduce-scatter:", "all-to-all:", "broadcast:"),
}  # fmt: skip
"""Argument -> completion of its values."""


class _Declared(NamedTuple):
    """What is annotated with an `Argument`: its type, the `Argument`, and attributes of its option."""

    kind: Any
    argument: Argument
    attributes: Mapping[str, Any] = {}

    def flags(self, name: str) -> list[str]:
        """How it is typed."""
        return self.argument.flag.split() or [f"--{name.replace('_', '-')}"]


def options(*groups: Any, **changes: ByName | None) -> Callable[[Command], Command]:
    """An option for each parameter of a command that is an `Argument`, and for each argument of `groups`: (arguments of a verb, names), or all of it.

    Keyword-only parameters come behind the groups. `changes`: {argument: attributes of its option, or None for no option}.
    """

    def decorate(command: Command) -> Command:
        own, of_verbs = _declared(command), reduce(lambda found, group: found | _group(group), groups, dict[str, _Declared]())
        last = {name for name, parameter in signature(command).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
        known = {name: one for name, one in own.items() if name not in last}
        known |= {name: one for name, one in of_verbs.items() if name not in own and changes.get(name, {}) is not None}
        known |= {name: one for name, one in own.items() if name in last}
        typed = {f"`{name}`": one.flags(name)[0] for name, one in known.items()}
        for name, one in reversed(known.items()):
            command = _option(name, one, typed, {**one.attributes, **(changes.get(name) or {})})(command)
        return _with_options(command) if "options" in known else command

    return decorate


def _declared(where: Any) -> dict[str, _Declared]:
    """The parameters of a command, or the arguments of a verb, whose types may have no module here."""
    if is_typeddict(where) and where.__name__ not in TABLE:
        return {name: _Declared(where.__annotations__[name], argument) for name, argument in arguments_of(where).items()}
    section, found = TABLE.get(where.__name__, {}), {}
    for name, hint in get_type_hints(where, include_extras=True).items():
        kind, *more = (hint.__origin__, *hint.__metadata__) if hasattr(hint, "__metadata__") else (hint,)
        if name in section:
            found[name] = _Declared(kind, meaning_of(section, name), *more)
        elif more:
            found[name] = _Declared(kind, *more)
    return found


def _group(group: Any) -> dict[str, _Declared]:
    """The arguments that are named, or all that can be typed."""
    arguments, *only = group if isinstance(group, tuple) else (group,)
    every = _declared(arguments)
    return {name: every[name] for name in only or every if only or every[name].argument.shown or every[name].kind is bool}


def _with_options(command: Command) -> Command:
    """The command gets the values of `--set` read, as `options`."""

    @wraps(command)
    def read(*args: Any, settings: Texts, **asked: Any) -> Any:
        from dysharp.runs.options import parse_set

        return command(*args, options=parse_set(settings), **asked)

    return read


def _option(name: str, one: _Declared, typed: Mapping[str, str], attributes: ByName) -> Callable[[Command], Command]:
    shown, flags = attributes.get("metavar", one.argument.shown), one.flags(name)
    argument, default = one.argument._replace(shown=shown), attributes.get("default", one.argument.default)
    given = attributes.get("show_default", default is not False and default not in (..., None, "", ()))
    text, _, otherwise = reduce(lambda told, word: told.replace(word, typed[word]), typed, argument.text).partition(" None: ")
    return click.option(*flags, *[name] * flags[-1].startswith("-"), **{
        **({"required": True} if default is ... else {"default": default}), "show_default": given, "metavar": shown or None,
        **({"is_flag": True} if one.kind is bool else {"type": _type(argument, one.kind)}),
        **({"is_flag": False} if "flag_value" in attributes else {}), "multiple": name == "options" or (default == () and shown[-3:] != "..."),
        "shell_complete": COMPLETE.get(name) or complete_words(*argument.words),
        "help": text[0].upper() + text[1:] + ("" if given or not otherwise else f"  [default: {otherwise.rstrip('.')}]"),
    } | attributes)  # fmt: skip


def _type(argument: Argument, kind: Any) -> Any:
    """How the command line reads a value."""
    if argument.shown.startswith("["):
        return click.Choice(argument.words)
    if argument.shown.endswith("...") and "=" not in argument.shown:
        return Words(argument.shown[-4])
    number = next((each for each in (kind, *get_args(kind)) if each in (int, float, str)), str)
    if argument.span is None or number is str:
        return number
    kinds: dict[type, Any] = {int: click.IntRange, float: click.FloatRange}
    return kinds[number](*argument.span)
