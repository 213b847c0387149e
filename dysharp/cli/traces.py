"""`dysharp capture` and `dysharp routing`: record, import and describe expert choices."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import click

from dysharp.api.arguments import CaptureArgs
from dysharp.base import ByName, Cells, ConfigError, Numbers, Texts, one_line
from dysharp.cli.flags import Json, Out, complete_from, helps, numbers_of, options
from dysharp.runs.arguments import Argument
from dysharp.show.output import print_json

if TYPE_CHECKING:
    from pathlib import Path

    from dysharp.workload import Recording

GiB = 1 << 30
Gpus = Annotated[str, Argument("8,16,32,64", "numbers of GPUs to place the experts on.", "G,G,..."), {"type": str}]
_OUT = Argument(..., "trace to write; --routing OUT.npz replays it.", "OUT.npz", None, "-o --out")
TraceFile = Annotated[str, _OUT, {"type": Out(".npz")}]
_PLACED = Argument(..., "placement file to write, for --placement OUT.json.", "OUT.json", None, "-o --out")


class _RoutingGroup(click.Group):
    """`dysharp routing X` describes X unless X is one of the subcommands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            example = "`dysharp routing deepseek-v2-lite`"
            raise click.UsageError(f"Missing argument 'FILE_OR_NAME', such as {example}; `dysharp routing --help` lists commands")
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["describe", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RoutingGroup)
def routing() -> None:
    """Describe recorded or drawn routing; import routing and placements of other tools.

    `dysharp routing FILE_OR_NAME` is short for `dysharp routing describe FILE_OR_NAME`.
    """


@routing.command()
@click.argument("source", metavar="FILE_OR_NAME")
@options()
def describe(source: str, gpus: Gpus, model: str | None, tokens: int | None, seed: int, domain: int | None, as_json: Json) -> None:
    """Describe recorded or drawn routing: load imbalance and distinct GPUs.

    FILE_OR_NAME is a trace (.npz), a file of counts (.csv), the name of a packaged trace, or a routing string.
    """
    from dysharp.cli.texts.routing_text import counts_of, print_layers, print_nodes, routing_dict
    from dysharp.runs.request import routing_string
    from dysharp.specs import load_model
    from dysharp.workload import describe as describe_source
    from dysharp.workload.describe import describe_nodes

    if domain is not None and model is None:
        raise ConfigError("--domain: found no --model, expected a model: its experts and tokens are drawn and dealt to the GPUs")
    loaded = load_model(model) if model else None
    rows = describe_source(source, counts_of(gpus), model=loaded, tokens_per_gpu=tokens, seed=seed)
    nodes = []
    if loaded is not None and domain is not None:
        nodes = describe_nodes(routing_string(source), counts_of(gpus), domain, model=loaded, tokens_per_gpu=tokens, seed=seed)
    if as_json:
        print_json(routing_dict(source, rows) | ({"nodes": [asdict(row) for row in nodes]} if nodes else {}))
        return
    print_layers(rows)
    print_nodes(nodes)


def _formats() -> Cells:
    from dysharp.workload.importers import FORMATS, summary

    return {name: summary(name) for name in FORMATS}


class _HintArgs(TypedDict):
    """What a dump may leave out."""

    experts: int | None
    topk: int | None
    n_layers: int | None
    model: str | None
    layers: Annotated[str | None, {"type": str}]
    tokens: int | None
    counts_of: str
    seed: int
    limit: float


@routing.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options(_HintArgs, format_name={"is_eager": True, "callback": helps(_formats, 16), "shell_complete": complete_from(_formats, "help", "auto")})
def _import(files: Texts, out: TraceFile, format_name: str, *, gpus: Gpus, as_json: Json, **values: Any) -> None:
    """Convert routing dumps of other tools to a trace.

    FILE... is one recording: one file, or one file for each rank or request. Nothing in a file is executed. From a file of counts, tokens
    are drawn with exactly these counts; a note says so.
    """
    from dysharp.cli.texts.routing_text import counts_of
    from dysharp.workload.importers import import_trace

    counts = counts_of(gpus)
    done = import_trace(files, format_name, _hints(**values))
    for note in (f"read as {done.format}", *done.notes):
        click.echo(f"note: {one_line(note)}", err=True)
    _save(done.trace, out, counts, as_json, {"format": done.format, "notes": list(done.notes)})


@routing.command()
@click.argument("file", metavar="FILE")
@options()
def placement(file: str, out: Annotated[str, _PLACED, {"type": Out(".json")}], layer: int, gpus: int | None) -> None:
    """Convert the expert placement of a load balancer to a placement file.

    FILE holds phy2log of DeepSeek's EPLB or physical_to_logical_map of vLLM and SGLang (.npz or torch.save), or is the expert map of
    vLLM-Ascend (JSON).
    """
    from dysharp.workload.importers.placements import import_placement, placement_json
    from dysharp.workload.traces import save_text

    held = import_placement(file, layer, gpus)
    save_text(placement_json(held), out, ".json")
    click.echo(f"written: {out}, {sum(map(len, held))} slots on {len(held)} GPUs; to use it: --placement {out}")


@click.command()
@click.argument("model", metavar="MODEL_DIR")
@options(CaptureArgs, layers={"type": str})
def capture(
    model: str, text: Annotated[str, Argument(..., "UTF-8 text that the model reads.", "FILE")], out: TraceFile, *, layers: str | None, gpus: Gpus,
    as_json: Json, **asked: Any,
) -> None:  # fmt: skip
    """Record the routing of a Hugging Face MoE model while it reads a text.

    MODEL_DIR is a local folder with config.json and *.safetensors. Without a tokenizer in that folder the model reads bytes. Needs the extra "torch".
    """
    from dysharp.api import capture as capture_text
    from dysharp.api.recording import read_text
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.routing_text import counts_of

    counts, wanted = counts_of(gpus), _layers(layers)
    body = read_text(text)
    with progress_bar("tokens") as progress:
        trace = capture_text(model, body, layers=wanted, progress=progress, **asked)
    click.echo(f"note: {one_line(trace.origin)}", err=True)
    _save(trace, out, counts, as_json, {"notes": [trace.origin]})


def _hints(model: str | None, experts: int | None, topk: int | None, layers: str | None, counts_of: str, limit: float, **values: Any) -> Any:
    from dysharp.specs import load_model
    from dysharp.workload.importers import Hints

    if not 0 < limit <= 1 << 20:
        raise ConfigError(f"--limit: found {limit:g}, expected GiB above 0, at most {1 << 20}")
    most_layers = None
    if model is not None:
        known = load_model(model)
        experts, topk, most_layers = experts or known.n_experts, topk or known.topk, _layers_of(model)
    max_bytes = max(int(limit * GiB), 1)
    return Hints(experts=experts, topk=topk, most_layers=most_layers, layers=_layers(layers), model=counts_of, max_bytes=max_bytes, **values)


def _layers_of(model: str) -> int | None:
    """Layers of the whole model, those of MTP included; None where only one layer of it is described."""
    from dysharp.specs import load_whole

    try:
        whole = load_whole(model)
    except ConfigError:
        return None
    return whole.n_layers + whole.mtp


def _layers(text: str | None) -> Numbers | None:
    return None if text is None else tuple(numbers_of("--layers", text, "layer numbers such as 3,7"))


def _save(trace: "Recording", out: "str | Path", counts: list[int], as_json: bool, more: ByName) -> None:
    from dysharp.cli.texts.routing_text import print_layers, routing_dict
    from dysharp.workload import describe_trace, save_trace

    rows = describe_trace(trace, counts)
    path = str(save_trace(trace, out))
    if as_json:
        print_json(routing_dict(trace.name, rows) | {"path": path} | more)
        return
    print_layers(rows)
    click.echo(f"written: {path}; to replay it: --routing {path}")
