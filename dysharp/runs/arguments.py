"""Arguments of verbs: type, default and meaning of each, once for Python, `help` and the command line. Loads nothing heavy."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from dysharp.base import AnyMapping, AnyPath, ConfigError, read_toml, show

if TYPE_CHECKING:
    from dysharp.runs.options import Value
    from dysharp.runs.progress import Progress
    from dysharp.specs import Cluster, Model
    from dysharp.workload import Routing, Work

TABLE = read_toml(Path(__file__).with_suffix(".toml"))
"""{arguments of a verb: {name: its meaning}}."""
DEFAULT_CLUSTER: str = TABLE["every"]["cluster"]["default"]
MEASURED_CLUSTER = "hw-dgx-h100"


class Argument(NamedTuple):
    """Default and meaning of one argument, and its option (`cli.flags.options`).

    default  ... = an option that must be given
    text     the meaning; `None: X.` at its end is the default in words
    shown    the value of the option in its help: `a|b` are words to complete, `[a|b]` the only words, `A,B,...` a list; "" = no option, or a flag
    span     (least, most); most None = without an end
    flag     the option where it is not the name with "--"
    """

    default: Any
    text: str
    shown: str = ""
    span: tuple[float, float | None] | None = None
    flag: str = ""

    @property
    def words(self) -> list[str]:
        """The values that `shown` lists; [] where it lists none."""
        return self.shown.strip("[]").split("|") if "|" in self.shown and self.shown.islower() else []

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError for a number outside `span`."""
        least, most = self.span or (-inf, None)
        if isinstance(value, int | float) and not least <= value <= (inf if most is None else most):
            raise ConfigError(f"{name}: found {show(value)}, expected {least} {'or more' if most is None else f'to {most}'}")

    def also(self, remark: str) -> "Argument":
        """With a remark of one verb behind the meaning that all verbs share."""
        meaning, none, default = self.text.partition(" None: ")
        return self._replace(text=f"{meaning} {remark}{none}{default}")

    @property
    def meaning(self) -> str:
        """The text for Python, where nothing else shows the words."""
        return f"{self.text} One of {', '.join(self.words)}." if self.words else self.text


class _SharedArgs(TypedDict, total=False):
    """Keyword arguments that `run`, `compare` and `advise` share."""

    cluster: "AnyPath | Cluster"
    gpus: int | None
    tokens: int | None
    layer: int | None
    routing: "str | Routing | None"
    placement: str
    direction: str
    seed: int
    fidelity: str
    options: "Mapping[str, Value] | None"
    progress: "Progress | None"


class _ModelArgs(TypedDict, total=False):
    model: "AnyPath | Model"


class RequestArgs(_ModelArgs, _SharedArgs, total=False):
    """Keyword arguments of `run` and `compare`."""

    workload: "str | Work | None"
    window: int | None
    precision_of_time: str | float | None
    exact: bool
    start: str | None
    slow: str | None


class AdviseArgs(_SharedArgs, total=False):
    """Keyword arguments of `advise`."""

    systems: Sequence[str] | None
    phase: str | None
    precision: str | None


def meaning_of(section: Mapping[str, AnyMapping], name: str) -> Argument:
    """An argument of a section of `arguments.toml`, or of a table like it."""
    own = section.get(name, {})
    given = dict(own if "text" in own else TABLE["every"].get(name, {}) | own)
    default, span, also = given.get("default"), given.get("span"), given.pop("also", "")
    given |= {"default": tuple(default) if isinstance(default, list) else default, "span": span and (*span, None)[:2]}
    return Argument(**given).also(also) if also else Argument(**given)


def arguments_of(arguments: type) -> dict[str, Argument]:
    """{name: default and meaning} of a TypedDict of arguments. A default that is no plain value stands beside the type."""
    known, section = arguments.__annotations__, TABLE.get(arguments.__name__, {})
    return {name: kind.__metadata__[0] if hasattr(kind, "__metadata__") else meaning_of(section, name) for name, kind in known.items()}
