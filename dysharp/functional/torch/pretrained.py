"""A Hugging Face model from a local folder: safetensors only. No code of the folder runs, no network is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dysharp.base import I64, ByName, ConfigError, Numbers, parse_json, read_text
from dysharp.functional.torch.extra import require_transformers
from dysharp.functional.torch.routers import moe_layers

if TYPE_CHECKING:
    import torch

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")
_N_BYTES = 256
_SAFE: ByName = {"local_files_only": True, "trust_remote_code": False}


def load_pretrained(folder: Path, layers: Numbers | None = None) -> torch.nn.Module:
    """The causal language model of a folder with `config.json` and `*.safetensors`, in its saved dtype.

    Two checks run before weights are read: the config names a model of transformers with experts in all `layers`, and the weight files are large
    enough for the model. Raises ConfigError if a check fails or a weight is missing, because transformers would draw missing weights.
    """
    require_transformers()
    import torch

    transformers = _transformers()
    _check_folder(folder)
    with _one_line(folder), _quiet():
        config = transformers.AutoConfig.from_pretrained(folder, **_SAFE)
        with torch.device("meta"):
            shape = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    moe_layers(shape, layers)
    _check_bytes(folder, sum(p.numel() for p in shape.parameters()))
    with _one_line(folder), _quiet():
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype="auto", use_safetensors=True, output_loading_info=True, **_SAFE
        )
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise ConfigError(f"{folder}: {len(missing)} weights are missing, the first is {missing[0]}, expected all of them")
    loaded: torch.nn.Module = model.eval()
    return loaded


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of the folder; None if the folder has none. Raises ConfigError if the tokenizer does not load."""
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        return None
    with _one_line(folder), _quiet():
        return _transformers().AutoTokenizer.from_pretrained(folder, **_SAFE)


def token_ids(text: str, tokenizer: Any | None, max_tokens: int, n_vocabulary: int) -> I64:
    """The first `max_tokens` token ids of a text, `[tokens]`.

    Without a tokenizer the ids are UTF-8 bytes, for a model with at least 256 tokens.

    Raises ConfigError for an empty text.
    """
    if max_tokens < 1:
        raise ConfigError(f"capture: found max_tokens {max_tokens}, expected at least 1")
    if not text:
        raise ConfigError("capture: found an empty text, expected some")
    if tokenizer is None:
        if n_vocabulary < _N_BYTES:
            raise ConfigError(f"capture: no tokenizer, and {n_vocabulary} tokens in the model, expected at least {_N_BYTES} to feed it bytes")
        return np.frombuffer(text[:max_tokens].encode()[:max_tokens], dtype=np.uint8).astype(np.int64)
    short = text[: 16 * max_tokens]  # a tokenizer takes minutes for a long text, and few tokens have 16 characters
    ids = _encoded(tokenizer, short)
    if len(ids) < max_tokens and len(short) < len(text):
        ids = _encoded(tokenizer, text)
    return np.asarray(ids[:max_tokens], dtype=np.int64)


def _encoded(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder, expected a Hugging Face model with config.json and *.safetensors")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: no config.json, expected a Hugging Face model")
    read_text(folder / "config.json")  # a regular text of bounded length
    if not any(folder.glob("*.safetensors")):
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))
        raise ConfigError(f"{folder}: no *.safetensors{f' but {others[0]}' if others else ''}, expected weights as safetensors (no pickle is read)")


def _check_bytes(folder: Path, n_parameters: int) -> None:
    n_bytes = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    if n_parameters > 4 * n_bytes:  # four parameters per byte: no checkpoint stores parameters in fewer bits
        raise ConfigError(f"{folder}: config.json describes {n_parameters} parameters, the safetensors have {n_bytes} bytes, expected a whole model")


def _transformers() -> Any:
    require_transformers()
    return importlib.import_module("transformers")


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """Turn errors of transformers about a folder into ConfigError, because the input is wrong."""
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder}: transformers cannot load it: {reason[:240]}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Run transformers without its progress bars and warnings."""
    logging = _transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def model_name(folder: Path) -> str:
    """The name of a model in a recording: name of the folder, and model type of the config."""
    kind = parse_json(read_text(file), str(file)).get("model_type", "") if (file := folder / "config.json").is_file() else ""
    return f"{folder.resolve().name} ({kind})" if isinstance(kind, str) and kind else folder.resolve().name
