"""Chunks of layers: what every pipeline rank holds, equal or as a layout string of Megatron says.

A string has one letter per piece: E embedding, t layer, m MTP layer, L head and loss; `|` ends a chunk; `t*4` and `(t|)*30` repeat
(Megatron-LM, docs/user-guide/features/pipeline_parallel_layout.md).
"""

import re
from dataclasses import dataclass
from typing import Literal

from dysharp.errors import ConfigError
from dysharp.specs.fields import show
from dysharp.specs.whole import WholeModel
from dysharp.steps.layout import Layout

Placement = Literal["loop", "v", "both"]
"""Which chunks a rank holds. "loop": chunk c on rank c mod pp. "v": chunks 0..pp-1 down, pp..2pp-1 back up (ZBV, DualPipeV; vpp = 2).
"both": chunk r and chunk pp-1-r, so that every chunk is held twice (DualPipe; vpp = 1)."""
MAX_LETTERS = 1 << 14
GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([Etm L|])\*(\d{1,4})")


@dataclass(frozen=True, slots=True)
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
    pieces = _expanded(layout.stages).split("|") if layout.stages else _equal(model, layout)
    faults = _misfits(pieces, model, layout)
    if faults:
        raise ConfigError(f"layout for {model.name}: stages {show(layout.stages)}: {faults[0]}")
    chunks, first, losses = [], 0, 1 + "".join(pieces).count("m")
    for piece in pieces:
        n = piece.count("t")
        chunks.append(Chunk(first, n, "E" in piece, piece.count("m"), losses * ("L" in piece)))
        first += n
    return tuple(chunks)


def chunks_of_rank(chunks: tuple[Chunk, ...], layout: Layout, rank: int, placement: Placement = "loop") -> tuple[int, ...]:
    """Numbers of the chunks of pipeline rank `rank`, in the order of its chunk ids. Raises `ConfigError` for a placement that does not fit."""
    p = layout.pp
    if placement == "loop":
        return tuple(range(rank, len(chunks), p))
    needed = 2 if placement == "v" else 1
    if layout.vpp != needed:
        raise ConfigError(f"layout: found vpp={layout.vpp}, expected {needed} for chunks placed as {placement!r}")
    return (rank, 2 * p - 1 - rank) if placement == "v" else (rank, p - 1 - rank)


def count_chunks(stages: str) -> int:
    """Chunks of a layout string. Raises `ConfigError` for any other text."""
    return _expanded(stages).count("|") + 1


def _equal(model: WholeModel, layout: Layout) -> list[str]:
    n, rest = divmod(model.n_layers, layout.chunks)
    if rest:
        raise ConfigError(f"layout for {model.name}: pp x vpp: found {layout.chunks}, expected a divisor of layers = {model.n_layers}, or stages=...")
    pieces = ["t" * n] * layout.chunks
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


def _misfits(pieces: list[str], model: WholeModel, layout: Layout) -> list[str]:
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
