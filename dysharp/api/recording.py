"""`capture`: from a model and a text to a Recording of its routing."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from dysharp.api.arguments import CaptureArgs
from dysharp.base import AnyPath, MiB, decode_utf8, read_bytes
from dysharp.runs import takes, telling
from dysharp.workload import Recording

MAX_TEXT_BYTES = 64 * MiB


@takes(CaptureArgs)
def capture(model: Any, text: str, **request: Unpack[CaptureArgs]) -> Recording:
    """Record the experts that a Hugging Face MoE model chooses while it reads the first `max_tokens` tokens of `text`.

    `model`: a `torch.nn.Module`, or a local folder with `config.json` and `*.safetensors`. `save_trace` writes the result,
    `make_routing("trace:FILE")` replays it. Raises ConfigError as `functional.torch.capture` does, and for a folder without a Hugging Face MoE model.
    """
    from dataclasses import replace

    from dysharp.functional.torch.pretrained import load_pretrained, load_tokenizer, model_name, token_ids
    from dysharp.functional.torch.routers import capture as record

    tokenizer, progress = request["tokenizer"], request["progress"]
    wanted = None if request["layers"] is None else tuple(request["layers"])
    if isinstance(model, str | os.PathLike):
        folder = Path(model)
        name = folder.resolve().name
        telling(progress, name)("loading model")
        module = load_pretrained(folder, wanted)
        name = model_name(folder)
        tokenizer = load_tokenizer(folder) if tokenizer is None else tokenizer
    else:
        module, name = model, type(model).__name__
    ids = token_ids(text, tokenizer, request["max_tokens"], _vocabulary(module))
    report = partial(telling(progress, name), "capture") if progress else None
    trace = record(module, ids, layers=wanted, sequence=request["sequence"], name=name, progress=report)
    return trace if tokenizer is not None else replace(trace, origin=f"{trace.origin}, text fed as bytes")


def read_text(path: AnyPath) -> str:
    """A UTF-8 text of at most 64 MiB; raises ConfigError for anything else."""
    return decode_utf8(read_bytes(Path(path), MAX_TEXT_BYTES), str(path))


def _vocabulary(model: Any) -> int:
    embeddings = model.get_input_embeddings() if callable(getattr(model, "get_input_embeddings", None)) else None
    return int(getattr(embeddings, "num_embeddings", 0))
