"""What to simulate: the arguments that `run`, `compare` and `advise` share, the Request that they become, and its Workload."""

import functools
import inspect
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_type_hints

from dysharp.analysis.row import DIRECTIONS
from dysharp.base import AnyPath, ByName, ConfigError, check_word, frozen, nearest, show
from dysharp.program import Skew
from dysharp.runs.arguments import RequestArgs, arguments_of
from dysharp.runs.options import Value, split_fabric
from dysharp.runs.point import FIDELITIES
from dysharp.runs.progress import Progress
from dysharp.runs.skew import make_skew
from dysharp.specs import Cluster, Model, load_cluster, load_model
from dysharp.specs.arguments import checked as check_types
from dysharp.specs.arguments import fitting
from dysharp.workload import SUB_LAYER, Routing, SubLayer, Work, make_routing, packaged_traces, parse_collective, parse_sub_layer

MOST_GPUS, MOST_TOKENS = 1 << 16, 1 << 40  # beyond, sizes of memory have no number
MOST_IMPRECISE = 0.05
Verb = TypeVar("Verb", bound=Callable[..., Any])


ModelSource = AnyPath | Model
ClusterSource = AnyPath | Cluster


@frozen
class Request:
    """The arguments of one call, loaded and checked.

    tokens   tokens per GPU
    window   tokens per GPU that are simulated; None = all, or as `precision` says
    precision  part of the layer time to which it has to be known, else all tokens run (`runs.known`); None = exactly
    fabric   fields of `FabricConfig` that differ from the cluster's, sorted by name
    options  options of systems, not yet checked: {"system.option": value}
    skew     start times and speeds of the ranks; None = all alike
    waiting  whether Rows say where each rank waits (`Row.waiting_us`), about a tenth of the time of a run
    """

    model: Model
    cluster: Cluster
    tokens: int
    routing: str | Routing
    layer: int | None
    placement: str
    direction: str
    seed: int
    fidelity: str
    window: int | None
    fabric: tuple[tuple[str, Any], ...]
    options: Mapping[str, Value]
    progress: Progress | None
    skew: Skew | None
    waiting: bool = True
    precision: float | None = None


def takes(arguments: type, **defaults: Any) -> Callable[[Verb], Verb]:
    """Decorate a verb whose `**request` is the TypedDict `arguments`; `defaults` replaces defaults of arguments.

    The verb gets every argument, missing ones with their default. An unknown argument raises TypeError, which names the nearest known one; a value of
    a wrong type (`specs.arguments`) or outside its span raises ConfigError. `help` and `inspect.signature` show all arguments.
    """
    known = {name: argument._replace(default=defaults.get(name, argument.default)) for name, argument in arguments_of(arguments).items()}

    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        names = {*known, *(parameter.name for parameter in own)}
        types, door = get_type_hints(arguments, localns=globals() | verb.__globals__), check_types(verb)

        @functools.wraps(verb)
        def checked(*args: Any, **request: Any) -> Any:
            for name in (name for name in request if name not in names):
                raise TypeError(f"{verb.__name__}() got an unexpected keyword argument {name!r}{nearest(name, names)}")
            request = {name: fitting(name, value, types.get(name, Any)) for name, value in request.items()}
            request = {name: argument.default for name, argument in known.items()} | request
            for name, argument in known.items():
                argument.check(name, request[name])
            return door(*args, **request)

        keywords = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=a.default, annotation=types[n]) for n, a in known.items()]
        lines = [textwrap.fill(f"{name}: {argument.meaning}", 110, subsequent_indent="    ") for name, argument in known.items()]
        checked.__doc__ = "\n".join([inspect.cleandoc(verb.__doc__ or ""), "", "Keyword arguments:", *lines])
        checked.__signature__ = signature.replace(parameters=own + keywords)  # type: ignore[attr-defined]
        return cast(Verb, checked)

    return decorate


def make_request(args: RequestArgs) -> Request:
    """Load and check the arguments of a verb, all of them given. Raises ConfigError for a value that is unknown or out of range."""
    direction, fidelity, gpus, tokens, given = args["direction"], args["fidelity"], args["gpus"], args["tokens"], args["routing"]
    if isinstance(given, Routing):
        gpus, tokens = given.n_gpus if gpus is None else gpus, given.tokens_per_gpu if tokens is None else tokens
    check_word(direction, tuple(DIRECTIONS), f"direction: found {direction!r}")
    check_word(fidelity, FIDELITIES, f"fidelity: found {fidelity!r}")
    fabric, options = split_fabric(args["options"], fidelity)
    model, cluster = load_model(args["model"]), load_cluster(args["cluster"])
    for name, value, most in (("gpus", gpus, MOST_GPUS), ("tokens", tokens, MOST_TOKENS)):
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{name}: found {show(value)}, expected {'at least 1' if value < 1 else f'at most {most}'}")
    tokens = model.tokens_per_gpu if tokens is None else tokens
    given = model.routing if given is None else routing_string(given) if isinstance(given, str) else given
    window = args["window"] or None
    cluster = cluster if gpus is None else cluster.with_gpus(gpus)
    if window is not None:
        _check_window(window, tokens, fidelity, cluster.domains)
    if fidelity == "packet" and not cluster.n_switches:
        raise ConfigError(
            f'fidelity: found "packet" on cluster "{cluster.name}", which has no switch, expected "burst" (its links have no public packets)'
        )
    return Request(
        model=model, cluster=cluster, tokens=tokens, routing=given, layer=args["layer"], placement=args["placement"], direction=direction,
        seed=args["seed"], fidelity=fidelity, window=window, fabric=tuple(sorted(fabric.items())), options=options, progress=args["progress"],
        skew=make_skew(args["start"], args["slow"], cluster.n_gpus, args["seed"]),
        precision=_precision(args["precision_of_time"], bool(args["exact"] or window), fidelity),
    )  # fmt: skip


def _precision(given: str | float | None, all_tokens: bool, fidelity: str) -> float | None:
    """The part of the time, of "0.5%" or 0.005. Raises ConfigError for another value, and beside arguments that say how many tokens run."""
    if given is None:
        return None
    text = str(given).strip()
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not 0 < part <= MOST_IMPRECISE:
        raise ConfigError(f"precision_of_time: found {show(given)}, expected above 0% and at most 5%, such as 0.5%")
    if all_tokens or fidelity != "burst":
        where = "beside window or exact" if all_tokens else "at packet level"
        raise ConfigError(f'precision_of_time: found it {where}, expected it alone and fidelity "burst"')
    return part


@frozen
class CollectiveRequest:
    """The arguments of one call with a collective or a sub-layer as its workload, loaded and checked. Fields as in `Request`."""

    work: Work
    cluster: Cluster
    seed: int
    fidelity: str
    fabric: tuple[tuple[str, Any], ...]
    options: Mapping[str, Value]
    progress: Progress | None


_OF_LAYERS = ("model", "tokens", "layer", "routing", "placement", "direction", "window", "precision_of_time", "exact", "start", "slow")
"""Arguments that a collective has no use for."""


def make_collective_request(args: RequestArgs) -> CollectiveRequest:
    """Load and check the arguments of a verb whose `workload` is a collective. Raises ConfigError for a wrong value, and for arguments of a layer."""
    defaults, given = arguments_of(RequestArgs), cast(ByName, args)
    for name in _OF_LAYERS:
        if given.get(name, defaults[name].default) != defaults[name].default:
            raise ConfigError(f"{name}: found {given[name]!r} beside a workload, expected none (a collective has no {name})")
    check_word(args["fidelity"], FIDELITIES, f"fidelity: found {args['fidelity']!r}")
    fabric, options = split_fabric(args["options"], args["fidelity"])
    cluster = load_cluster(args["cluster"])
    gpus, asked = args["gpus"], args["workload"]
    if gpus is not None and gpus < 1:
        raise ConfigError(f"gpus: found {gpus}, expected at least 1")
    cluster = cluster if gpus is None else cluster.with_gpus(gpus)
    work = _work_of(asked, cluster.n_gpus)
    if not cluster.gpu and not isinstance(work, SubLayer):
        raise ConfigError(f'cluster: found "{cluster.name}", expected an hw-* cluster (software of collectives has constants of real GPUs)')
    return CollectiveRequest(work, cluster, args["seed"], args["fidelity"], tuple(sorted(fabric.items())), options, args["progress"])


def _work_of(asked: str | Work | None, gpus: int) -> Work:
    """The workload of a text, such as "all-reduce:64MiB" or "sub-layer:llama-7b:L1"."""
    if asked is not None and not isinstance(asked, str):
        return asked
    text = str(asked)
    return parse_sub_layer(text, gpus) if text.partition(":")[0] == SUB_LAYER else parse_collective(text, gpus)


def _check_window(window: int, tokens: int, fidelity: str, domains: int) -> None:
    if fidelity != "packet" and domains == 1:
        where = "the burst level simulates all tokens"
        raise ConfigError(f'window: found fidelity "{fidelity}" and one NVLink domain, expected "packet" or several domains ({where})')
    if not 4 <= window < tokens:
        raise ConfigError(f"window: found {window}, expected 4 to {tokens - 1} (below the {tokens} tokens per GPU)")


def routing_string(text: str) -> str:
    """A routing string of `workload`; a bare trace (name or .npz) or counts (.csv) file, with options behind a colon or without, becomes one."""
    ends = text.partition(":")[0], "" if text.startswith(("trace:", "loads:", "counts:")) else text
    if ends[0] in packaged_traces() or any(one.endswith(".npz") for one in ends):
        return f"trace:{text}"
    return f"counts:{text}" if any(one.endswith(".csv") for one in ends) else text


@frozen
class Workload:
    """A Request with its Routing, shared by all systems of a comparison; `routing_s`: wall seconds of drawing it."""

    request: Request
    routing: Routing
    routing_s: float


def make_workload(r: Request) -> Workload:
    """Draw or replay the routing of a Request, once."""
    begin = time.perf_counter()
    routing = make_routing(r.routing, r.model, r.cluster.n_gpus, r.tokens, seed=r.seed, layer=r.layer, placement=r.placement)
    return Workload(r, routing, time.perf_counter() - begin)
