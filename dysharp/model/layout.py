"""`Layout`: how a training step is spread over GPUs, the rules a layout keeps, and the chunks of layers that every pipeline rank holds.

Degrees are named as in Megatron. Ranks count in the order tensor, context, data, pipeline (the first changes fastest); experts use the order
expert tensor, expert, expert data, pipeline over the same ranks (Megatron-LM, parallel_state.py).

Chunks are as equal as layers allow, or as a layout string of Megatron says: one letter per piece, E embedding, t layer, m MTP layer, L head and loss;
`|` ends a chunk; `t*4` and `(t|)*30` repeat (Megatron-LM, docs/user-guide/features/pipeline_parallel_layout.md).
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from dysharp.base import ByName, ConfigError, check_word, frozen, show
from dysharp.model.operators import Cut
from dysharp.specs import WholeModel
from dysharp.specs.fields import Text, check_fields, raise_if

Degree = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]
Kind = Literal["tp", "cp", "dp", "pp", "etp", "ep", "edp"]
KINDS: tuple[Kind, ...] = ("tp", "cp", "dp", "pp", "etp", "ep", "edp")
FILLED = 4
"""Micro-batches per pipeline stage where a text gives none: the pipeline is full."""
NAMES = {"mbs": "micro_batch", "m": "micro_batches", "ga": "micro_batches"}
"""Short names of keys in the text of a layout."""


@frozen
class Layout:
    """Degrees of parallelism and sizes of batches. Raises `ConfigError` for an invalid value."""

    tp: Degree = 1
    """Tensor parallel, with sequence parallel outside the attention and FFN."""
    pp: Degree = 1
    """Pipeline stages (ranks of a pipeline)."""
    vpp: Degree = 1
    """Chunks of layers per pipeline rank."""
    ep: Degree = 1
    """GPUs that share the routed experts of a layer."""
    etp: Degree = 1
    """Tensor parallel inside an expert."""
    cp: Degree = 1
    """Context parallel."""
    dp: Degree = 1
    """Data parallel replicas of the dense parts."""
    fsdp: Degree = 1
    """Ranks of dp x cp that share weights, gradients and optimizer (fully sharded); 1: every rank holds its weights."""
    micro_batch: Degree = 1
    """Sequences of a micro-batch."""
    micro_batches: Degree = 1
    """Micro-batches per replica and step."""
    stages: Text = ""
    """Megatron's layout of the pipeline, such as "Et*4|(t*4|)*14tmL"; "": equal chunks."""

    def __post_init__(self) -> None:
        check_fields(self, "layout")
        if self.stage_gpus % (self.ep * self.etp):
            found = f"found ep x etp = {self.ep * self.etp}"
            raise ConfigError(f"layout: {found}, expected a divisor of the {self.stage_gpus} GPUs of a pipeline stage (tp x cp x dp)")
        if self.cp * self.dp % self.fsdp:
            raise ConfigError(f"layout: found fsdp = {self.fsdp}, expected a divisor of the {self.cp * self.dp} ranks of dp x cp")

    @property
    def cut(self) -> Cut:
        """What the layout makes of a layer, with sequence parallelism."""
        return Cut(self.tp, self.cp, self.ep, self.etp, self.tp)

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def gpus(self) -> int:
        """GPUs of the whole step."""
        return self.stage_gpus * self.pp

    @property
    def edp(self) -> int:
        """Replicas of every expert."""
        return self.stage_gpus // (self.ep * self.etp)

    @property
    def expert_fsdp(self) -> int:
        """Ranks that share the weights of one expert, with `fsdp`."""
        return max(1, self.edp * self.fsdp // (self.cp * self.dp)) if self.fsdp > 1 else 1

    @property
    def chunks(self) -> int:
        """Chunks of layers over all pipeline ranks."""
        return self.pp * self.vpp

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.micro_batches * self.dp

    def tokens(self, sequence: int) -> int:
        """Tokens of a micro-batch on one context rank, for sequences of `sequence` tokens."""
        return self.micro_batch * sequence // self.cp

    def stride(self, kind: Kind) -> int:
        """Distance of two neighbours of a group, in ranks."""
        strides = {"tp": 1, "cp": self.tp, "dp": self.tp * self.cp, "pp": self.stage_gpus, "etp": 1, "ep": self.etp, "edp": self.etp * self.ep}
        return strides[kind]

    def groups(self, kind: Kind) -> list[list[int]]:
        """Every group of a kind as a list of ranks, in the order of its first rank."""
        size, stride = getattr(self, kind), self.stride(kind)
        firsts = [rank for rank in range(self.gpus) if rank // stride % size == 0]
        return [list(range(first, first + size * stride, stride)) for first in firsts]

    @staticmethod
    def fits(tp: Any, etp: Any, ep: Any, gpus: int, domain_gpus: int) -> tuple[Any, Any, Any]:
        """Of degrees or columns of them: whether all groups of tp stay in a domain, those of etp, and whether groups of experts do or fill theirs.

        A job of experts in groups of a power of two may leave GPUs of every domain idle, as 8 of a rack of 72.
        """
        n = ep * etp
        one, two, three = ((n <= domain_gpus) & ((gpus <= domain_gpus) | (domain_gpus % n == 0)) for n in (tp, etp, n))
        return one, two, three | (n <= domain_gpus) & (n & (n - 1) == 0) | (n % domain_gpus == 0)


def layout_of(text: str) -> Layout:
    """The layout of a text such as `tp=1,pp=16,ep=64,mbs=1,gbs=8192`; `gpus` or `gbs` may stand for `dp` or `micro_batches`.

    Without `dp` and `gpus`, `dp` is the least that holds the experts. Without `gbs` and `m`, micro-batches fill the pipeline. Raises
    `ConfigError` in one line.
    """
    values = _values(text)
    stages = values.pop("stages", "")
    known = {key: int(value) for key, value in values.items()}
    gpus, batch = known.pop("gpus", None), known.pop("gbs", None)
    base = known.get("tp", 1) * known.get("cp", 1)
    per_replica = base * known.get("pp", 1)
    if gpus is not None:
        if gpus % per_replica or "dp" in known:
            want = "no dp beside gpus" if "dp" in known else f"a multiple of tp x cp x pp = {per_replica}"
            raise ConfigError(f"layout: found gpus={gpus}, expected {want}")
        known["dp"] = gpus // per_replica
    known.setdefault("dp", -(-known.get("ep", 1) * known.get("etp", 1) // base))
    if batch is not None:
        share = known["dp"] * known.get("micro_batch", 1)
        if batch % share or "micro_batches" in known:
            want = "no micro_batches beside gbs" if "micro_batches" in known else f"a multiple of dp x mbs = {share}"
            raise ConfigError(f"layout: found gbs={batch}, expected {want}")
        known["micro_batches"] = batch // share
    elif known.get("pp", 1) > 1:
        known.setdefault("micro_batches", FILLED * known["pp"])
    fields: ByName = {**known, "stages": str(stages)}
    return Layout(**fields)


def _values(text: str) -> dict[str, int | str]:
    """The keys of a layout's text. Every value is a positive integer, but for `stages`."""
    values: dict[str, int | str] = {}
    keys = [*Layout.__dataclass_fields__, *NAMES, "gpus", "gbs"]
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        key = NAMES.get(name, name)
        check_word(name, keys, f"layout: {show(name)}: unknown key")
        if key in values:
            raise ConfigError(f"layout: found {key} twice, expected it once")
        if key == "stages":
            values[key] = value
        elif not equals or not value.isascii() or not value.isdigit() or not 0 < len(value) <= 7 or int(value) == 0:
            raise ConfigError(f"layout: {key}: found {show(value)}, expected an integer from 1 to 9999999")
        else:
            values[key] = int(value)
    return values


def check_layout(model: WholeModel, layout: Layout, sequence: int = 4096) -> None:
    """Raise `ConfigError` with one line that names every constraint that `layout` breaks for `model` and sequences of `sequence` tokens."""
    raise_if(_misfits(model, layout, sequence), f"layout for {model.name}")


def _misfits(model: WholeModel, layout: Layout, sequence: int) -> list[str]:
    a, faults = model.attention, []

    def divides(key: str, degree: int, what: str, count: int) -> None:
        if count % degree:
            faults.append(f"{key}: found {degree}, expected a divisor of {what} = {count}")

    if model.linear is not None:
        divides("tp", layout.tp, "value_heads of linear attention", model.linear.value_heads)
        if layout.cp > 1:
            faults.append(f"cp: found {layout.cp}, expected 1: linear attention and Mamba-2 over ranks (Megatron-LM's all-to-all) are not modelled")
    if not layout.stages and layout.chunks > model.n_layers:
        faults.append(f"pp x vpp: found {layout.chunks}, expected at most layers = {model.n_layers}, or stages=...")
    divides("tp", layout.tp, "heads", a.heads)
    if not a.mla and a.kv_heads % layout.tp and layout.tp % a.kv_heads:
        faults.append(f"tp: found {layout.tp}, expected a divisor or a multiple of kv_heads = {a.kv_heads}")
    if model.dense_hidden:
        divides("tp", layout.tp, "dense_hidden", model.dense_hidden)
    if model.shared_hidden:
        divides("tp", layout.tp, "shared_hidden", model.shared_hidden)
    if model.layer is None and (layout.ep > 1 or layout.etp > 1):
        faults.append(f"ep: found {layout.ep} x {layout.etp}, expected 1 in a model without experts")
    if model.layer is not None:
        divides("ep", layout.ep, "experts", model.layer.n_experts)
        divides("etp", layout.etp, "expert_hidden", model.layer.expert_hidden)
    if layout.vpp > 1 and layout.pp == 1:
        faults.append(f"vpp: found {layout.vpp}, expected 1 without a pipeline (pp = 1)")
    if layout.cp > 1:
        divides("2 x cp", 2 * layout.cp, "tokens of a sequence", sequence)
    divides("tp x cp", layout.tp * layout.cp, "tokens of a micro-batch", layout.micro_batch * sequence)
    return faults


def check_domain(layout: Layout, domain_gpus: int, n_domains: int | None = 1) -> None:
    """Raise `ConfigError` unless tensor groups stay in an NVLink domain, expert groups too where there is one domain, and all GPUs exist.

    `n_domains` None: as many as the layout needs. Expert groups beyond a domain fill all of theirs.
    """
    *tensor, whole = Layout.fits(layout.tp, layout.etp, layout.ep, layout.gpus, domain_gpus)
    broken = [kind for kind, fits in zip(("tp", "etp"), tensor, strict=True) if not fits]
    faults = [f"{kind}: found {getattr(layout, kind)}, expected groups inside an NVLink domain of {domain_gpus} GPUs" for kind in broken]
    if n_domains == 1 and layout.ep * layout.etp > domain_gpus:
        faults.append(f"ep: found {layout.ep} x etp {layout.etp}, expected at most the {domain_gpus} GPUs of the only NVLink domain")
    elif not whole:
        faults.append(f"ep: found {layout.ep} x etp {layout.etp}, expected groups inside an NVLink domain of {domain_gpus} GPUs, or over whole ones")
    elif n_domains is not None and layout.gpus > domain_gpus * n_domains:
        faults.append(f"found {layout.gpus} GPUs, expected at most {domain_gpus * n_domains} ({n_domains} domains of {domain_gpus})")
    raise_if(faults, "layout")


MAX_LETTERS = 1 << 14
GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([Etm L|])\*(\d{1,4})")


@frozen
class Chunk:
    """Consecutive parts of a model: layers `first` to `first + n_layers - 1`, and what stands before and behind them."""

    first: int
    n_layers: int
    embedding: bool = False
    mtp: int = 0
    """MTP layers."""
    head: int = 0
    """Losses, each with its product with the vocabulary: those of all predictions stand with L (Megatron-LM, multi_token_prediction.md)."""

    def layers(self) -> range:
        """Numbers of its layers, without MTP."""
        return range(self.first, self.first + self.n_layers)


def chunks_of(model: WholeModel, layout: Layout) -> tuple[Chunk, ...]:
    """The pp x vpp chunks of a model in the order in which a token visits them. Raises `ConfigError` for a string that does not fit."""
    pieces = _expanded(layout.stages).split("|") if layout.stages else _even(model, layout)
    faults = _misplaced(pieces, model, layout)
    if faults:
        raise ConfigError(f"layout for {model.name}: stages {show(layout.stages)}: {faults[0]}")
    chunks, first, losses = [], 0, 1 + "".join(pieces).count("m")
    for piece in pieces:
        n = piece.count("t")
        chunks.append(Chunk(first, n, "E" in piece, piece.count("m"), losses * ("L" in piece)))
        first += n
    return tuple(chunks)


def count_chunks(stages: str) -> int:
    """Chunks of a layout string. Raises `ConfigError` for any other text."""
    return _expanded(stages).count("|") + 1


def _even(model: WholeModel, layout: Layout) -> list[str]:
    """Chunks whose layers differ by one at most: those in the middle have more, since the ends hold embedding, MTP and head."""
    n, rest = divmod(model.n_layers, layout.chunks)
    first = (layout.chunks - rest) // 2
    pieces = ["t" * (n + (first <= at < first + rest)) for at in range(layout.chunks)]
    pieces[0] = "E" + pieces[0]
    pieces[-1] += "m" * model.mtp + "L"
    return pieces


def _expanded(text: str) -> str:
    """A layout string without repeats. Raises `ConfigError` for any other text."""
    bare = re.sub(r"\s", "", text)
    while match := GROUP.search(bare):
        body, times = (match[1], int(match[2])) if match[2] else (match[3], int(match[4]))
        if len(bare) + len(body) * times > MAX_LETTERS:
            raise ConfigError(f"layout: stages {show(text)}: found more than {MAX_LETTERS} letters, expected fewer")
        bare = bare[: match.start()] + body * times + bare[match.end() :]
    bare = bare.removesuffix("|")
    if not bare or re.search(r"[^EtmL|]", bare):
        raise ConfigError(f"layout: stages {show(text)}: expected E, t, m, L, | and repeats such as t*4 or (tt|)*30")
    return bare


def _misplaced(pieces: list[str], model: WholeModel, layout: Layout) -> list[str]:
    whole, faults = "".join(pieces), []
    if len(pieces) != layout.chunks:
        faults.append(f"found {len(pieces)} chunks, expected pp x vpp = {layout.chunks}")
    if whole.count("t") != model.n_layers:
        faults.append(f"found {whole.count('t')} layers, expected {model.n_layers}")
    if whole.count("m") not in (0, model.mtp):
        faults.append(f"found {whole.count('m')} MTP layers, expected {model.mtp} or none")
    if not re.fullmatch(r"Et*m*L", whole):
        faults.append("expected E first, then all layers, then MTP layers, and L last")
    return faults
