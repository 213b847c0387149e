"""Record which experts a Hugging Face MoE model chooses while it reads tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dysharp.base import Array, ByName, ConfigError, OnProgress
from dysharp.functional.torch.extra import require_torch, require_transformers
from dysharp.workload import Recording, check_weights, checked_ids

if TYPE_CHECKING:
    import torch

SEQUENCE = 512  # tokens that attend to each other; a longer text is cut


@dataclass(slots=True)
class _Recorder:
    """The arguments of all calls of one layer's experts module."""

    layer: int
    name: str
    module: torch.nn.Module
    n_experts: int
    ids: list[Array] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    n_rows: int = 0

    def record(self, args: tuple[Any, ...], kwargs: ByName) -> None:
        """Keep expert ids and gate weights, both `[tokens, topk]`, from the arguments of one call."""
        import torch

        # Read by position, as in `wrap`, because the names of the parameters differ between models.
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        plain = len(given) == 3 and given[1].ndim == 2 and given[1].shape == given[2].shape
        if not plain or given[1].is_floating_point() or given[1].dtype == torch.bool:
            shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in given)
            raise ConfigError(f"{self.name}: found experts called with {shapes}, expected hidden states, expert ids and gate weights")
        ids: Array = given[1].detach().to("cpu", torch.int64).numpy().copy()
        ids[ids == self.n_experts] = -1  # some routers mark a dropped place with this id
        self.ids.append(ids)
        self.weights.append(given[2].detach().to("cpu", torch.float32).numpy().copy())
        self.n_rows += len(ids)


def capture(
    model: torch.nn.Module,
    ids: Sequence[int] | Array,
    *,
    layers: Sequence[int] | None = None,
    sequence: int | None = None,
    batch: int = 4,
    name: str = "",
    progress: OnProgress | None = None,
) -> Recording:
    """Run `model` on token ids `[tokens]` and record its routers: expert ids and float32 gate weights per token.

    | argument | meaning |
    |---|---|
    | `sequence` | tokens per sequence (default: 512, or the model's limit); the text is cut without padding |
    | `batch` | sequences per run of the model |
    | `layers` | layer numbers as in the modules' names; default: all MoE layers |
    | `progress` | called with (tokens done, tokens in total) |

    The experts of the model must take (hidden states, expert ids, gate weights), as in transformers 5. The model does not change.

    Raises ConfigError if torch or transformers 5 is missing, if the model has no experts or lacks a layer, if an id is
    no token of the model, if the model fails, and if layers differ in experts or top-k.
    """
    require_torch()
    if type(model).__module__.startswith("transformers."):
        require_transformers()
    recorders = moe_layers(model, layers)
    tokens = _checked_tokens(model, ids)
    length = _window(model, sequence)
    for what, value in (("sequence", length), ("batch", batch)):
        if value < 1:
            raise ConfigError(f"capture: found {what} {value}, expected at least 1")
    windows = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    with _hooks(recorders), _evaluating(model):
        _run(model, windows, batch, recorders, progress)
    return _trace(name or type(model).__name__, recorders, [len(window) for window in windows])


def moe_layers(model: torch.nn.Module, layers: Sequence[int] | None = None) -> list[_Recorder]:
    """The routed experts of a model by layer number. Raises ConfigError if a layer of `layers` has no experts."""
    found = [
        _Recorder(_number(name), name, module, _n_experts(name, module))
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "experts"
    ]
    if not found:
        kinds = ", ".join(dict.fromkeys(type(m).__name__ for _, m in model.named_modules()))
        raise ConfigError(f"{type(model).__name__}: found no module named experts among {kinds[:160]}, expected a model with MoE layers")
    numbers = [r.layer for r in found]
    if len(set(numbers)) < len(numbers):
        for position, recorder in enumerate(found):  # no unique numbers in names: number by position
            recorder.layer = position
        numbers = list(range(len(found)))
    if layers is None:
        return found
    for layer in layers:
        if layer not in numbers:
            raise ConfigError(f"{type(model).__name__}: layer {layer} has no experts, expected some of {', '.join(map(str, numbers[:60]))}")
    return [found[numbers.index(layer)] for layer in dict.fromkeys(layers)]


def _number(name: str) -> int:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return numbers[-1] if numbers else 0


def _n_experts(name: str, module: torch.nn.Module) -> int:
    stated = getattr(module, "num_experts", None)
    if isinstance(stated, int) and stated > 0:
        return stated
    weights = [p for p in module.parameters(recurse=False) if p.ndim == 3]
    if not weights:
        raise ConfigError(f"{name}: found {type(module).__name__} without weights [experts, ., .], expected experts as in transformers 5")
    return int(weights[0].shape[0])


def _checked_tokens(model: torch.nn.Module, ids: Sequence[int] | Array) -> Array:
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not tokens.size:
        raise ConfigError(f"capture: found token ids {tokens.dtype} of shape {tokens.shape}, expected integers [tokens]")
    embeddings = getattr(model, "get_input_embeddings", None)
    n_tokens = getattr(embeddings() if callable(embeddings) else None, "num_embeddings", None)
    if n_tokens is None:
        raise ConfigError(f"capture: found {type(model).__name__}, expected a language model with input embeddings")
    wrong = (tokens < 0) | (tokens >= n_tokens)
    if wrong.any():
        at = int(wrong.argmax())
        raise ConfigError(f"capture: token {at}: found id {tokens[at]}, expected 0 to {n_tokens - 1}, the model's vocabulary")
    return tokens.astype(np.int64)


def _window(model: torch.nn.Module, sequence: int | None) -> int:
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", None) or config
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return SEQUENCE if sequence is None else sequence
    if sequence is not None and sequence > limit:
        raise ConfigError(f"capture: found sequence {sequence}, expected at most the model's {limit} positions")
    return min(SEQUENCE, limit) if sequence is None else sequence


@contextmanager
def _hooks(recorders: list[_Recorder]) -> Iterator[None]:
    handles: list[Any] = []
    try:
        for recorder in recorders:
            handles.append(recorder.module.register_forward_pre_hook(lambda _, args, kwargs, r=recorder: r.record(args, kwargs), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Run without dropout, router noise and gradients, then restore the mode of every module."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _run(model: torch.nn.Module, windows: list[Array], batch: int, recorders: list[_Recorder], progress: OnProgress | None) -> None:
    import torch

    backbone: torch.nn.Module = getattr(model, "base_model", model)  # without the head, because no logits are used
    device = next(model.parameters()).device
    options = {"use_cache": False} if "use_cache" in inspect.signature(backbone.forward).parameters else {}
    done, total = 0, sum(len(window) for window in windows)
    for group in _groups(windows, batch):
        try:
            backbone(input_ids=torch.from_numpy(np.stack(group)).to(device), **options)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ConfigError(f"{type(model).__name__}: the model does not run on tokens alone: {type(error).__name__}: {reason[:200]}") from error
        done += sum(len(window) for window in group)
        for recorder in recorders:
            if recorder.n_rows != done:
                raise ConfigError(f"{recorder.name}: found {recorder.n_rows} rows after {done} tokens, expected one row a token")
        if progress is not None:
            progress(done, total)


def _groups(windows: list[Array], batch: int) -> Iterator[list[Array]]:
    """Batches of sequences of equal length. The last sequence of a text may be shorter and then runs alone."""
    full = [window for window in windows if len(window) == len(windows[0])]
    yield from (full[start : start + batch] for start in range(0, len(full), batch))
    yield from ([window] for window in windows[len(full) :])


def _trace(name: str, recorders: list[_Recorder], lengths: list[int]) -> Recording:
    first = recorders[0]
    form = (first.n_experts, first.ids[0].shape[1])
    for r in recorders:
        if (r.n_experts, r.ids[0].shape[1]) != form:
            found = f"top-{r.ids[0].shape[1]} of {r.n_experts} experts"
            raise ConfigError(f"{r.name}: found {found}, expected top-{form[1]} of {form[0]} as {first.name}; take layers of one kind")
    layers = tuple(r.layer for r in recorders)
    expert = np.stack([np.concatenate(r.ids) for r in recorders])
    weight = np.stack([np.concatenate(r.weights) for r in recorders])
    ids = checked_ids(name, expert, layers, first.n_experts)
    check_weights(name, weight, expert.shape, layers)
    return Recording(name, ids, layers, np.array(lengths, dtype=np.int64), first.n_experts, weight, origin="captured from the model's own routers")
