"""`capture`: from a model and a text to a Recording of its routing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dysharp.base.reading import decode_utf8, read_bytes
from dysharp.base.units import MiB
from dysharp.runs.progress import Progress, Step
from dysharp.workload import Recording

if TYPE_CHECKING:
    import torch

MAX_TEXT_BYTES = 64 * MiB
MAX_TOKENS = 8192


def capture(
    model: str | os.PathLike[str] | torch.nn.Module,
    text: str,
    *,
    tokenizer: Any | None = None,
    layers: Sequence[int] | None = None,
    max_tokens: int = MAX_TOKENS,
    sequence: int | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Record the experts that a Hugging Face MoE model chooses while it reads the first `max_tokens` tokens of `text`.

    model      a model in memory, or a local folder with `config.json` and `*.safetensors`
    tokenizer  None: the tokenizer of the folder; without one the model reads the bytes of the text, and the Recording's `origin` says so
    layers     layers to record. None: all layers with experts
    sequence   tokens of one sequence; they attend to each other. None: 512, or the model's limit

    `save_trace` writes the result, `make_routing("trace:FILE")` replays it. Raises ConfigError as `functional.torch.capture` does, and for a folder
    without a Hugging Face MoE model.
    """
    from dataclasses import replace

    from dysharp.functional.torch.pretrained import load_pretrained, load_tokenizer, model_name, token_ids
    from dysharp.functional.torch.routers import capture as record

    wanted = None if layers is None else tuple(layers)
    if isinstance(model, str | os.PathLike):
        folder = Path(model)
        name = folder.resolve().name
        _report(progress, name, "loading model")
        module = load_pretrained(folder, wanted)
        name = model_name(folder)
        tokenizer = load_tokenizer(folder) if tokenizer is None else tokenizer
    else:
        module, name = model, type(model).__name__
    ids = token_ids(text, tokenizer, max_tokens, _vocabulary(module))
    report: Callable[[int, int], None] | None = None
    if progress is not None:
        show = progress

        def report(done: int, total: int) -> None:
            show(Step(name, 1, 1, "capture", done, total))

    trace = record(module, ids, layers=wanted, sequence=sequence, name=name, progress=report)
    return trace if tokenizer is not None else replace(trace, origin=f"{trace.origin}, text fed as bytes")


def read_text(path: str | os.PathLike[str]) -> str:
    """A UTF-8 text of at most 64 MiB; raises ConfigError for anything else."""
    return decode_utf8(read_bytes(Path(path), MAX_TEXT_BYTES), str(path))


def _report(progress: Progress | None, name: str, stage: str) -> None:
    if progress is not None:
        progress(Step(name, 1, 1, stage))


def _vocabulary(model: Any) -> int:
    embeddings = model.get_input_embeddings() if callable(getattr(model, "get_input_embeddings", None)) else None
    return int(getattr(embeddings, "num_embeddings", 0))
