"""What arguments of Megatron-LM and recipes of Megatron-Bridge say about a step; both use the same names.

Arguments and recipe files are read as {name: value}. Text is data: nothing is imported, run or expanded. A value is a text, a truth value, or a tuple
of texts. Names have underscores. In a file with sections (`model:`, `[train]`) the name of a leaf counts, and values that are empty or null do not.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dysharp.base import AnyMapping, ByName, Cells, ConfigError, Texts, frozen, parse_json, parse_toml, parse_yaml, read_text, read_toml, show
from dysharp.model import count_chunks, layout_of
from dysharp.specs import WholeModel
from dysharp.training.memory import FULL, MODULES

MOST = 1 << 20
"""Largest number of an argument; most bytes of a file."""
Value = str | bool | Texts
Values = dict[str, Value]
WORDS = {"true": True, "false": False}
EMPTY = ("", "null", "none", "~", "None")


def _read_settings(text: str) -> Values:
    """`text`: words with --arguments among them, or a file: TOML, YAML, JSON, a Python recipe as FILE.py:NAME, anything else as arguments."""
    if re.search(r"(^|\s)--\w", text):
        return _arguments_of(text)
    name, _, function = text.partition(".py:")
    path = Path(f"{name}.py" if function else text)
    content = read_text(path, MOST)
    if path.suffix == ".py":
        return _python(content, function, str(path))
    if path.suffix in (".toml", ".json"):
        return dict(_leaves((parse_toml if path.suffix == ".toml" else parse_json)(content, str(path))))
    return dict(_leaves(parse_yaml(content, str(path)))) if path.suffix in (".yaml", ".yml") else _arguments_of(content)


def _arguments_of(text: str) -> Values:
    """Arguments of a command line: `--name value ...`, `--name=value`, `--flag`. Words before the first argument are left out."""
    if len(text) > MOST:
        raise ConfigError(f"arguments: found {len(text)} characters, expected at most {MOST}")
    try:
        words = shlex.split(re.sub(r"\n\s*\)", "\n--end ", text.replace("\\\n", " ")), comments=True)  # an array of a script ends its last argument
    except ValueError as error:
        raise ConfigError(f"arguments: found {error}, expected closed quotes") from None
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            key, equals, value = word.lstrip("-").partition("=")
            found[_name(key)] = [value] if equals else []
            name = "" if equals else _name(key)
        elif name:
            found[name].append(word)
    return {name: _plain(values) for name, values in found.items()}


def _plain(values: list[str]) -> Value:
    if not values:
        return True
    return WORDS.get(values[0].lower(), values[0]) if len(values) == 1 else tuple(values)


def _name(text: object) -> str:
    return str(text).strip().lstrip("-").replace("-", "_")


def _leaves(tree: AnyMapping) -> Iterator[tuple[str, Value]]:
    for key, value in sorted(tree.items(), key=lambda one: one[0] == "mixed_precision"):  # it replaces what the model says
        if isinstance(value, Mapping) and str(value.get("_call_")).lower() != "false":
            yield from _leaves(value)
        elif value is not None:
            words = [str(one) for one in value] if isinstance(value, list) else [str(value["_target_"] if isinstance(value, Mapping) else value)]
            if not all(word in EMPTY for word in words):
                yield _name(key), _plain(words) if len(words) == 1 else tuple(words)


def _python(content: str, name: str, where: str) -> Values:
    """Constants that the function `name` of a recipe assigns to attributes or passes by name, or those of a preset: `name = replace(base, ...)`
    with the presets of the same file that it starts from. Nothing of what it calls.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: found {error}, expected Python") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    presets = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    if name in presets:
        return dict(_leaves(_preset(name, presets)))
    if name not in functions:
        raise ConfigError(f"{where}: found {show(name)}, expected FILE.py:NAME with one of {', '.join([*functions, *presets]) or 'none'}")
    found: ByName = {}
    for node in ast.walk(functions[name]):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            found[node.targets[0].attr] = _constant(node.value, node.targets[0].attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.setdefault(node.arg, _constant(node.value, node.arg))
    return dict(_leaves(found))


def _preset(name: str, presets: Mapping[str, ast.expr]) -> ByName:
    """Keywords of a preset over those of the presets that it names."""
    chain: list[ast.Call] = []
    while name in presets and len(chain) < len(presets):
        value = presets[name]
        if isinstance(value, ast.Call):
            chain.append(value)
            value = value.args[0] if value.args else value
        name = value.id if isinstance(value, ast.Name) and value.id != name else ""
    return {word.arg: _constant(word.value, word.arg) for call in reversed(chain) for word in call.keywords if word.arg}


def _constant(node: ast.expr, name: str) -> Any:
    """The value of a constant; the text of a type, and of a call without keywords that makes `mixed_precision`; None for all else."""
    said = (type(node), name[-6:]) == (ast.Attribute, "_dtype") or (isinstance(node, ast.Call) and name == "mixed_precision" and not node.keywords)
    try:
        value = ast.unparse(node) if said else ast.literal_eval(node)
        str(value)  # an integer of too many digits has no text
    except (ValueError, TypeError, RecursionError, MemoryError):  # TypeError: {[]: 1}
        return None
    return sorted(value, key=str) if isinstance(value, set) else list(value) if isinstance(value, tuple) else value


_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
DEGREES: Cells = _TABLE["degrees"]
"""Argument -> key of a layout."""
MODEL = {"num_layers": "layers", "hidden_size": "hidden", "num_experts": "experts", "moe_router_topk": "top-k"}
"""Argument -> number of a model that it must equal."""
ALIAS: Cells = _TABLE["alias"]
"""Another name of an argument -> its own, which counts first."""
SHARDED = ("use_megatron_fsdp", "use_torch_fsdp2")
TIMED: Texts = tuple(_TABLE["names"]["timed"])
"""Arguments that change the time of a step and that `step` does not read."""
READ = (*DEGREES, *ALIAS, *MODEL, *SHARDED, *TIMED, *_TABLE["names"]["read"])
"""Every name that changes an answer or a note."""
KNOWN = Path(__file__).with_name("megatron_names.txt")
ALIKE, MOST_NAMES = 0.9, 2000
"""Likeness from which a name that `KNOWN` lacks is a misspelt one of `READ`: one letter of ten. Most names of a step."""
QUIET: Texts = tuple(_TABLE["names"]["quiet"])
"""Values with which an argument of `TIMED` changes nothing."""


@frozen
class _StepArguments:
    """A training step of a framework: the text of its layout (`model.layout_of`), sequence, recomputed modules, precision, and `notes`.

    `precision`: for `model.formats.formats_of`; "": the arguments name no type.
    """

    layout: str
    sequence: int | None = None
    recompute: Texts = ()
    precision: str = ""
    notes: Texts = ()
    overlap_tp: bool = False
    """Tensor parallel traffic of a dense model runs beside its GEMMs (`tp_comm_overlap`); of models with experts the argument is not read."""
    overlap_dp: bool = True
    """Gradients are reduced beside the passes (`overlap_grad_reduce`), as a recipe and sharded weights do unless they say no."""
    overlap_gather: bool = True
    """And parameters are gathered beside them (`overlap_param_gather`), not behind the optimizer."""


def arguments_from(text: str, model: WholeModel, more: str = "") -> _StepArguments:
    """What arguments or a recipe file (`_read_settings`) say about a step of `model`. `more`: keys of a layout, which count first.

    Raises ConfigError for a file that cannot be read, for another model, for what a layout cannot hold, and where GPUs are not said.
    """
    values = {ALIAS.get(name, name): value for name, value in sorted(_read_settings(text).items(), key=lambda one: one[0] not in ALIAS)}
    plain = not text.partition(":")[0].endswith((".toml", ".json", ".yaml", ".yml", ".py"))  # a recipe lies over another one
    _check(values, model, text, plain)
    own = {part.partition("=")[0].strip(): part.strip() for part in more.split(",") if part.strip()}
    keys = _degrees(values, model, own)
    if "gbs" in keys and not {"gpus", "dp"} & {*keys, *own}:
        raise ConfigError("arguments: found global_batch_size and no number of GPUs, expected --layout gpus=N beside them")
    tp = own.get("tp", "").partition("=")[2] or keys.get("tp", 1)
    if model.layer and plain:
        keys.setdefault("etp", tp)  # Megatron-LM, arguments.py
    layout = ",".join([*(f"{key}={value}" for key, value in keys.items() if key not in own), *own.values()])
    sharded = _is_on(values, *SHARDED)
    if sharded and "fsdp" not in own:
        plan = layout_of(layout)
        layout += f",fsdp={plan.dp * plan.cp}"
    overlap_tp = model.layer is None and values.pop("tp_comm_overlap", None) not in (None, False)
    overlap_dp = sharded or bool(values.get("overlap_grad_reduce", not plain))
    overlap_gather = sharded or bool(values.get("overlap_param_gather", not plain))
    matter = {"use_distributed_optimizer": not sharded, "sequence_parallel": str(tp) != "1"}
    unsaid = (line for name, line in _TABLE["unsaid"].items() if matter[name] and not values.get(name, not plain))
    precision = _precision(values)
    if precision.endswith("bf16-gradients"):
        values.pop("grad_reduce_in_bf16", None)  # read, and so no note
    notes = *_notes(values), *unsaid
    return _StepArguments(layout, _number(values, "seq_length"), _recompute(values), precision, notes, overlap_tp, overlap_dp, overlap_gather)


def _check(values: Values, model: WholeModel, text: str, plain: bool) -> None:
    if len(values) > MOST_NAMES:
        raise ConfigError(f"arguments: found {len(values)}, expected at most {MOST_NAMES}")
    known, read = {*READ, *read_text(KNOWN).split()}, {*READ} & {*values}
    if read and (foreign := {*_TABLE["names"]["foreign"]} & {*values}):
        raise ConfigError(f"arguments: found {min(foreign)}, expected arguments or a recipe of Megatron; --layout takes degrees of other frameworks")
    for name in values if plain or read else ():
        if name not in known and (near := get_close_matches(name, READ, 1, ALIKE)):
            raise ConfigError(f"arguments: found {name}, expected {near[0]}")
    if not read:
        raise ConfigError(f"arguments: found none in {show(text)}, expected --name value, or a recipe, of Megatron")
    strategy = values.get("data_parallel_sharding_strategy", "no_shard" if plain and not values.get("use_torch_fsdp2") else None)
    if _is_on(values, *SHARDED) and strategy not in (None, "optim_grads_params"):
        what = "expected optim_grads_params (no_shard is Megatron-LM's default) or no sharded weights"
        raise ConfigError(f"data_parallel_sharding_strategy: found {show(strategy)}, {what}")
    layer = model.layer
    of = {"layers": model.n_layers, "hidden": model.hidden, "experts": layer.n_experts if layer else 0, "top-k": layer.topk if layer else 0}
    for name, what in MODEL.items():
        if (found := _number(values, name)) is not None and found != of[what] and of[what]:
            raise ConfigError(f"{name}: found {found}, expected the {of[what]} of {model.name}")
    if (mtp := values.get("mtp_num_layers")) not in (None, False) and str(mtp) != str(model.mtp):
        raise ConfigError(f"mtp_num_layers: found {show(mtp)}, expected the {model.mtp} of {model.name}")


def _is_on(values: Values, *names: str) -> bool:
    return any(values.get(name) not in (None, False) for name in names)


def _number(values: Values, name: str) -> int | None:
    """A positive integer of the arguments; None: not there."""
    if not _is_on(values, name):
        return None
    text = str(values[name])
    if "$" in text:
        raise ConfigError(f"{name}: found {show(text)}, expected a number: variables are not expanded")
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 7 and 0 < int(text) <= MOST):
        raise ConfigError(f"{name}: found {show(text)}, expected an integer from 1 to {MOST}")
    return int(text)


def _degrees(values: Values, model: WholeModel, own: Cells) -> dict[str, int | str]:
    """Keys of a layout. `own`: parts of its text that count first: GPUs and batch, whatever variables stand for them, and the pipeline."""
    sized, ranks = {"gpus", "dp"} & {*own}, own.get("pp", "").partition("=")[2].strip()
    told = {"gpus": sized, "gbs": {"gbs", "m", "ga", "micro_batches"} & {*own}}
    keys: dict[str, int | str] = {key: n for name, key in DEGREES.items() if not told.get(key) and (n := _number(values, name))}
    per_node, nodes = (None if sized else _number(values, name) for name in ("nproc_per_node", "nnodes"))
    if per_node or nodes:
        keys["gpus"] = (per_node or 1) * (nodes or 1)
    pp = int(ranks if re.fullmatch("[1-9][0-9]{0,6}", ranks) else keys.get("pp", 1))
    if each := _number(values, "num_layers_per_virtual_pipeline_stage"):
        if model.n_layers % (pp * each):
            raise ConfigError(f"num_layers_per_virtual_pipeline_stage: found {each}, expected a divisor of layers / pp = {model.n_layers / pp:g}")
        keys["vpp"] = model.n_layers // pp // each
    if stages := _stages(values, model, pp, int(keys.get("vpp", 1))):
        n = count_chunks(stages)
        if n % pp:
            raise ConfigError(f"pipeline_model_parallel_layout: found {n} chunks, expected a multiple of pp = {pp}")
        keys |= {"stages": stages, "vpp": n // pp}
    return keys


def _stages(values: Values, model: WholeModel, pp: int, vpp: int) -> str:
    """The pipeline as a layout string; "": equal chunks."""
    given = values.get("pipeline_model_parallel_layout")
    if given not in (None, False):
        if not isinstance(given, str) or "$" in given:
            raise ConfigError(f"pipeline_model_parallel_layout: found {show(given)}, expected a string such as Et*4|(t*4|)*14tmL")
        return given.replace(",", "")
    first, last = (_number(values, f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    ends = [_is_on(values, f"account_for_{what}_in_pipeline_split") for what in ("embedding", "loss")]
    if pp == 1 or not (first or last or any(ends)):
        return ""
    layers, end = model.n_layers, "m" * model.mtp + "L"
    if any(ends):  # embedding and loss count as a layer each
        each, rest = divmod(layers + sum(ends), pp * vpp)
        sizes = [each] * (pp * vpp)
        sizes[0] -= ends[0]
        sizes[-1] -= ends[1]
    else:
        left = [size for size in (first, last) if size]
        middle, rest = divmod(layers - sum(left), pp - len(left)) if pp > len(left) else (0, layers - sum(left))
        ranks = [first or middle, *[middle] * (pp - 2), last or middle]
        rest = rest or any(size % vpp for size in ranks)
        sizes = [size // vpp for _ in range(vpp) for size in ranks]
    if rest or min(sizes) < 0:
        raise ConfigError(f"pipeline: found {layers} layers of {model.name}, expected chunks of whole layers on {pp} x {vpp} chunks")
    return "E" + "|".join("t" * size for size in sizes) + end


def _recompute(values: Values) -> Texts:
    how = values.get("recompute_granularity")
    if how in ("full", True):
        return (FULL,)
    if how != "selective" and not values.get("recompute_activations"):
        return ()
    return tuple(name for name in _modules(values) or ("core_attn",) if name in MODULES)


def _modules(values: Values) -> Texts:
    modules = values.get("recompute_modules")
    return (modules,) if isinstance(modules, str) else modules if isinstance(modules, tuple) else ()


FP8_RECIPES = {"blockwise": "fp8", "mxfp8": "mxfp8"}
"""--fp8-recipe -> precision; the others, delayed and tensorwise, have a scale per tensor."""
MIXED = {"mxfp8": "mxfp8", "nvfp4": "fp4-all", "subchannel": "fp8", "fp8": "fp8-tensor", "bf16": "bf16"}
"""Word in Megatron-Bridge's `mixed_precision` -> precision; the first counts."""


def _precision(values: Values) -> str:
    """The precision of the arguments; "" where they name no type."""
    moments, gradients = (values.get(of) in ("bf16", "bfloat16", "torch.bfloat16") for of in ("exp_avg_dtype", "main_grads_dtype"))
    name = next((one for word, one in MIXED.items() if word in str(values.get("mixed_precision"))), "")
    if _is_on(values, "fp4_format", "fp4"):
        name = "fp4-all"
    elif _is_on(values, "fp8_format", "fp8"):
        name = FP8_RECIPES.get(str(values.get("fp8_recipe")), "fp8-tensor")
    elif not name and (_is_on(values, "bf16") or moments):
        name = "bf16"
    wide = "bf16-gradients" if gradients or _is_on(values, "grad_reduce_in_bf16") else "bf16-moments"
    return f"{name},state={wide if name == 'bf16' else 'fp8-moments'}" if moments else name


def _notes(values: Values) -> Texts:
    """One line that names the arguments that change time and are not read."""
    how = [values.get(f"recompute_{name}") for name in ("granularity", "method")]
    timed = [name for name in TIMED if (*how, name[:9]) != ("full", "uniform", "recompute")]  # all layers, as `full` counts them
    named = [f"{name}={str(value)[:60]}" for name in timed if (value := values.get(name)) not in (None, False) and str(value) not in QUIET]
    named += [f"recompute_modules {name[:60]}" for name in _modules(values) if name not in MODULES]
    named += ["pipelines without bf16"] if values.get("fp16") is True else []
    return (f"Arguments that change the time and are not read: {', '.join(named)}.",) if named else ()
