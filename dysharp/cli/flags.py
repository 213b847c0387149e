"""Options that several commands share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from dysharp.base.errors import ConfigError

Command = Callable[..., Any]
PLACEMENT_HELP = "Placement of experts: contiguous, auto, eplb[:slots=N,nodes=N,groups=G], or a JSON or TOML file."
SET_HELP = "Set an option of a system; repeatable. `dysharp list options` shows names and ranges."


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
complete_settings = _complete("settings")
complete_routings = _complete("routings")
complete_placements = complete_words("contiguous", "auto", "eplb", "eplb:slots=")


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


def _drawable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """A file that no figure can be written to is refused here, before minutes of work."""
    if path is not None and not ctx.resilient_parsing:
        from dysharp.show.plots import check_format

        check_format(path)
    return path


def plot_flag(what: str) -> Callable[[Command], Command]:
    """`--plot FILE` of a command that can draw `what`."""
    return click.option("--plot", metavar="FILE", callback=_drawable, help=f"Also draw {what}.")


def jobs_flag(text: str, **options: Any) -> Callable[[Command], Command]:
    """`--jobs N`: how many processes run at once."""
    return click.option("-j", "--jobs", type=click.IntRange(1, 256), **({"default": 1, "show_default": True} | options), help=text)


window_flag = click.option(
    "--window",
    type=int,
    metavar="T",
    help="Packet fidelity, or several NVLink domains: simulate the first T tokens of each GPU and estimate the whole layer. 0: all tokens, where "
    "`compare` would choose leading tokens.",
)
_PRECISIONS = ("bf16", "fp8", "fp8-tensor", "mxfp8", "fp4", "fp4-all", "mxfp4", "mxfp4-fp8", "int4")
precision_flag = click.option(
    "--precision", metavar="NAME[,PART=VALUE...]", shell_complete=complete_words(*_PRECISIONS),
    help=f"Formats of weights, products, state and rows: {', '.join(_PRECISIONS)}; with another state bf16-moments, bf16-gradients, bf16-whole, "
    "fp8-moments, fp8-primary. Parts: weights (attention, experts, dense, head), products, kv, state, sent, back, such as fp8,products=bf16.  "
    "[default: as the model's config says]",
)  # fmt: skip
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")

workload_flag = click.option(
    "--workload",
    metavar="W",
    shell_complete=complete_words("all-reduce:", "all-gather:", "reduce-scatter:", "all-to-all:", "broadcast:"),
    help="A collective or sub-layer in place of a MoE layer: all-reduce:64MiB, all-gather-v:1MiB,3MiB,..., sub-layer:llama-7b:L1.",
)


def _one_of(flag: str, words: str, text: str) -> Callable[[Command], Command]:
    """An option whose values are `words`, the default first."""
    known = words.split("|")
    return click.option(flag, default=known[0], show_default=True, metavar=words, shell_complete=complete_words(*known), help=text)


_DIRECTION = _one_of("--direction", "fwd|bwd|both", "Forward pass, backward pass, or both.")
_FIDELITY = _one_of("--fidelity", "burst|packet", "Level of the simulation.")
_WORKLOAD = (
    click.option(
        "--model",
        default="deepseek-v2-lite",
        show_default=True,
        metavar="NAME|FILE",
        shell_complete=complete_models,
        help="Name of a packaged model, a TOML file, or a Hugging Face config.json.",
    ),
    click.option(
        "--cluster",
        default="paper-gh200-nvl32",
        show_default=True,
        metavar="NAME|FILE",
        shell_complete=complete_clusters,
        help="Name of a packaged cluster, a variant NAME,key=value,... or a TOML file.",
    ),
    click.option("--gpus", type=int, metavar="G", help="GPUs in use.  [default: all GPUs of the cluster]"),
    click.option("--tokens", type=int, metavar="T", help="Tokens per GPU.  [default: tokens_per_gpu of the model]"),
    click.option("--layer", type=int, metavar="L", help="Layer of a recording, or draw of a distribution.  [default: the layer of median imbalance]"),
    click.option(
        "--routing",
        metavar="R",
        shell_complete=complete_routings,
        help="Source of expert choices: uniform, normal:STD, powerlaw:ALPHA, lognormal:SIGMA, trace:NAME, a trace (.npz), "
        "counts (.csv), or a pattern such as hot-rank:share=0.2 (`dysharp list routings`).  [default: routing of the model]",
    ),
    click.option("--placement", default="auto", show_default=True, metavar="P", shell_complete=complete_placements, help=PLACEMENT_HELP),
    _DIRECTION,
    click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of everything that is drawn."),
    _FIDELITY,
    click.option("--set", "settings", multiple=True, metavar="SYSTEM.OPTION=VALUE", shell_complete=complete_settings, help=SET_HELP),
)

_SKEW = (
    click.option(
        "--start",
        metavar="S",
        help="Start time of each rank: fixed:US (the last rank is late), normal:SIGMA_US, rank=R:US,... or a CSV file (rank,start_us).",
    ),
    click.option(
        "--slow",
        metavar="S",
        help="Slow ranks: rank=R:FACTOR,..., normal:CV (spread of clocks) or a CSV file (rank,factor). Their GEMMs take FACTOR times as long.",
    ),
)

_MACHINE = 2  # the flags before this index name the model and the cluster


def workload_flags(command: Command) -> Command:
    """The flags of `run` and `compare` that say what to simulate."""
    return _with(command, (workload_flag, *_WORKLOAD, *_SKEW))


def recorded_workload_flags(command: Command) -> Command:
    """The flags of `trace`, which records one pass at burst level."""
    one = {
        _DIRECTION: _one_of("--direction", "fwd|bwd", "Forward pass or backward pass."),
        _FIDELITY: _one_of("--fidelity", "burst", "Level of the simulation: burst level only."),
    }
    return _with(command, (workload_flag, *(one.get(flag, flag) for flag in _WORKLOAD), *_SKEW))


def real_workload_flags(command: Command) -> Command:
    """The flags of a command whose argument is the model and whose cluster is an hw-* cluster."""
    cluster = click.option(
        "--cluster",
        default="hw-dgx-h100",
        show_default=True,
        metavar="NAME|FILE",
        shell_complete=complete_clusters,
        help="Name of a packaged hw-* cluster, or a TOML file, for example from `dysharp calibrate`.",
    )
    return _with(command, (cluster, *_WORKLOAD[_MACHINE:]))


def _with(command: Command, flags: tuple[Command, ...]) -> Command:
    for flag in reversed(flags):
        command = flag(command)
    return command
