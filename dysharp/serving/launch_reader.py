"""The launch line of an engine, read by the same rules that write one (`launch.toml`); what other flags say is data, too (`launch_flags.toml`).

Text is data: nothing is run, and no variables are expanded but those that the text itself sets. A setting is a flag, a variable of the environment,
or a name inside JSON or YAML behind a dot: "--speculative-config.method". Names have dashes, whatever was typed.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dysharp.base.errors import ConfigError, nearest, show
from dysharp.base.reading import json_of, parse_toml, parse_yaml, read_text
from dysharp.base.units import GiB
from dysharp.base.values import frozen
from dysharp.model.formats import formats_of, published
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.launch import FILE, held, tables
from dysharp.serving.layout import ServeLayout
from dysharp.specs import list_whole_models, load_whole
from dysharp.specs.whole import WholeModel

MOST = 1 << 18
"""Most characters of a line, and bytes of a file that it names."""
MOST_NUMBER = 1 << 24
ALIKE = 0.85
"""Likeness from which a name inside a setting is a misspelt one."""
HEREDOC = re.compile(r"^([^\n]*?)<<-?\s*(['\"]?)(\w+)\2([^\n]*)\n(.*?)^\s*\3[ \t]*$", re.MULTILINE | re.DOTALL)
SUBSTITUTION = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`")
BY_ENGINES = "(VLLM|SGLANG|SGL|TRTLLM|TLLM|NCCL|NVSHMEM|DEEPEP|DG)_"
"""Beginnings of variables that engines and their libraries read."""
FILES = {"--config": "--", "--extra-llm-api-options": "--", "--moe-config.load-balancer": "--moe-config.load-balancer."}
"""Flags that name a file of settings -> what stands before their names."""
ONE = "--set"
ENGINE = {
    "step_tokens": "{:,} tokens a step", "most_requests": "{:,} requests of an attention group", "memory_part": "{:.0%} of the memory",
    "gathered_steps": "prompts wait {} steps for those of other groups", "overlaps": "", "mixed": "", "polled_steps": "", "early": "",
}  # fmt: skip
"""Fields of `Engine` that a line says -> how they are told where it does not say them."""
TRUTHS = ("overlaps", "mixed", "early", "prefixes")
TRUE_OR_FALSE = {"true": True, "false": False, "1": True, "0": False}
FLIPPED = {"true": "false", "false": "true", "1": "0", "0": "1"}
NOTHING = ("auto", "none", "null", "-1")
MAY_BE_NONE = ("slots", "draft_tokens", "gathered_steps")
SUFFIXES = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}
ENGINES = [name for name in tables() if name != "hosts"]


@frozen
class Launch:
    """What a launch line starts. `engine`: its rules, with those of the line. `replicas`: that the line starts; 0: it does not say.

    `model` has the checkpoint's name and precision, and the line's longest request. `precision`, `kv`, `ep_system`: "" where the line does not say.
    `lines`: how it was read, what it does not say, flags that do not move an answer, and those that may and are not counted.
    """

    engine: Engine
    model: WholeModel
    layout: ServeLayout
    replicas: int
    mtp: int
    precision: str
    kv: str
    ep_system: str
    prefixes: bool
    lines: tuple[str, ...]


@functools.cache
def known() -> dict[str, Any]:
    """What flags say."""
    path = FILE.with_name("launch_flags.toml")
    return parse_toml(read_text(path), path.name)


def read_launch(text: str, model: str | WholeModel | None = None, hbm_bytes: float = 0.0) -> Launch:
    """A launch line, or @FILE with one. `model`: the model of a path that the line names. `hbm_bytes`: memory of a GPU, by which defaults differ.

    Raises `ConfigError` in one line.
    """
    line = _Line(read_text(Path(text[1:]), MOST) if text.startswith("@") else text)
    whole = _model(line.checkpoint, model)
    said = line.said()
    if said.get("pool", "null") not in NOTHING:
        raise line.error("pool", "expected a server of prompts and decoding; --pools N:LAYOUT;N:LAYOUT replays two pools")
    drafts = line.drafts(said)
    layout, replicas = line.layout(said | {"draft_tokens": drafts}, whole)
    if min(layout.dp, layout.ep) > 1 and "ep_system" not in map(line.flags.get, line.settings):
        line.beside += line.table.get("exchange", [])
    if "all_batch" in said:
        said["batch"] = -(-said["all_batch"] // layout.dp)
    said |= {"most_requests": said["batch"]} if "batch" in said else {}
    defaults: dict[str, Any] = {}
    for one in line.table.get("silent", []):
        defaults |= {key: value for key, value in one.items() if key != "below_GiB" and hbm_bytes < one.get("below_GiB", 1 << 20) * GiB}
    own = {key: said[key] for key in ENGINE if key in said}
    engine = replace(engine_of(line.engine), **(defaults | own))
    narrow = formats_of(published(whole), model=whole).narrow
    precision = "" if narrow and said.get("precision") in ("fp8", "fp8-tensor") else said.get("precision", "")
    whole = replace(whole, context=said["context"]) if "context" in said else whole
    told = [form.format(getattr(engine, key)) for key, form in ENGINE.items() if form and key not in own and getattr(engine, key)]
    version = f"{line.engine} {tables()[line.engine]['version']}"
    lines = (
        f"launch line: {line.checkpoint} ({whole.name}), {layout.name}" + (f", {replicas} replicas" if replicas > 1 else ""),
        *([f"not in the line, as {version} starts: {', '.join(told)}"] if told else []),
        *([f"does not move this answer: {', '.join(line.quiet)}"] if line.quiet else []),
        *([f"may move it and is not counted: {', '.join(line.beside)}"] if line.beside else []),
    )  # fmt: skip
    given = {key: said.get(key, "") for key in ("kv", "ep_system")}
    return Launch(engine, whole, layout, replicas, drafts, precision, prefixes=said.get("prefixes", True), lines=lines, **given)


def _model(named: str, given: str | WholeModel | None) -> WholeModel:
    """The model of a checkpoint's name: the packaged one with the longest name that begins it, where behind it stand words of precision or dates."""
    names = {(one := load_whole(name)).repository.rpartition("/")[2]: one for name in list_whole_models()}
    names = {key.casefold(): one for key, one in (names | {key: load_whole(name) for key, name in known()["models"].items()}).items() if key}
    words, base = {key.casefold(): value for key, value in known()["precisions"].items()}, named.rstrip("/").rpartition("/")[2].casefold()
    for key in sorted((key for key in names if base.startswith(key)), key=len, reverse=True):
        behind = [word for word in re.split("[-_]", base[len(key) :]) if word]
        if base[len(key) : len(key) + 1] in ("", "-", "_") and all(word in words or word.isdigit() for word in behind):
            precision = next((words[word] for word in behind if words.get(word)), names[key].checkpoint)
            found = replace(names[key], repository=named, checkpoint=precision)
            if given is not None and load_whole(given).name != found.name and load_whole(given).name in list_whole_models():
                raise ConfigError(f"launch: found {named}, which is {found.name}, beside the model {load_whole(given).name}, expected one model")
            return found if given is None else load_whole(given)
    if given is not None or Path(named).exists():
        return load_whole(named if given is None else given)
    raise ConfigError(f"launch: model {show(named)}: not packaged; name its shape beside the line: dysharp serve MODEL|FILE --launch ...")


@functools.cache
def _pieces(engine: str) -> list[tuple[Mapping[str, int], dict[str, str]]]:
    """What templates write: when, and {setting: quantity, or a literal behind "="}. Numbers stand for quantities while a template is read."""
    names = {field for text in _texts(engine) for field in re.findall(r"(?<!{){(\w+)}", text)} - {"lines"}
    codes = {name: str(10**6 + i) for i, name in enumerate(sorted(names))}
    meant = {code: name for name, code in codes.items()}
    rules = [{"when": {}, "adds": tables()[engine]["launch"]}, *tables()[engine]["rules"]]
    found = []
    for rule in rules:
        settings: dict[str, str] = {}
        for key, read in (("adds", _arguments), ("line", lambda words: _leaves(parse_yaml("\n".join(words), "")))):
            for name, value in read(shlex.split(rule.get(key, "").format(**codes))):
                tree = json_of(value, engine) if value.startswith("{") else value
                settings |= {_dashed(leaf): text for leaf, text in _leaves(tree, name)}
        found.append((rule["when"], {name: meant.get(value, f"={value}") for name, value in settings.items()}))
    return found


def _texts(engine: str) -> list[str]:
    table = tables()[engine]
    return [table["launch"], *(rule[key] for rule in table["rules"] for key in ("adds", "line") if key in rule)]


@functools.cache
def _flags(engine: str) -> dict[str, str]:
    """Every setting that an engine has -> the quantity that it says, "" without one."""
    table = known()[engine]
    written = {name: value.partition("=")[0] for _, piece in _pieces(engine) for name, value in piece.items()}
    plain = dict.fromkeys([*table["quiet"].split(), *table["beside"].split(), *table["model"], *FILES, ONE], "")
    return plain | {name: value for name, value in written.items() if name not in plain} | {**table["reads"]}


class _Line:
    """One command while it is read: `settings`, and their names as they were `typed`."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST:
            raise ConfigError(f"launch: found {len(text)} characters, expected at most {MOST}")
        self.engine, before, words, self.files = _command(text)
        self.table, self.flags = known()[self.engine], _flags(self.engine)
        self.roots = {*self.table["aliases"], *(flag.partition(".")[0] for flag in self.flags)}
        self.settings: dict[str, str] = {}
        self.typed: dict[str, str] = {}
        self.beside: list[str] = []
        switches = {name for _, piece in _pieces(self.engine) for name, value in piece.items() if value == "=true"}
        switches |= {name for name, value in self.flags.items() if value.startswith("!") or value in TRUTHS}
        positional = list[str]()
        given = [*_arguments(words, lambda name: self._known(name)[0] in switches, positional)]
        models = [*(value for name, value in given if _dashed(name) in self.table["model"]), *positional[:1]]
        if len({*models}) != 1 or "$" in models[0]:
            found = " and ".join(map(show, models)) or "no model"
            raise ConfigError(f"launch: found {found}, expected one model behind {self.table['starts'][0]}")
        self.checkpoint = models[0]
        for name, value in (*before, *given):
            if _dashed(name) not in self.table["model"]:
                self._add(name, value)

    def _add(self, name: str, value: str) -> None:
        """A setting as it was typed; a file or a tree becomes its leaves."""
        path, negated = self._known(name)
        if path in FILES:
            for key, leaf in _leaves(parse_yaml(self._file(value), value)):
                self._add(FILES[path] + key, leaf)
        elif path == ONE:
            self._add("--" + value.partition("=")[0], value.partition("=")[2])
        elif value.startswith("{") and path not in self.table["quiet"].split():
            for key, leaf in _leaves(json_of(value, f"launch: {name}")):
                self._add(f"{name}.{key}", leaf)
        elif path:
            value = FLIPPED.get(value.lower(), value) if negated else value
            if self.settings.setdefault(path, value) != value:
                raise ConfigError(f"launch: found {self.typed[path]} {self.settings[path]} and {name} {value}, expected one value")
            self.typed[path] = name
        elif re.match(BY_ENGINES, name):
            self.beside.append(name)

    def _file(self, name: str) -> str:
        path = Path(name)
        return self.files[str(path)] if str(path) in self.files else read_text(path, MOST)

    def _known(self, typed: str) -> tuple[str, bool]:
        """The setting of a name, and whether --no- turns it around; "": a variable that is not read."""
        root, dot, rest = _dashed(typed).partition(".")
        root = re.sub(r"^-O\d$", "-O", root)
        plain = "--" + root.removeprefix("--no-")
        negated = root not in self.roots and plain in self.roots
        begun = {self.table["aliases"].get(name, name) for name in self.roots if name.startswith(root) and len(root) > len("--x")}
        if root not in self.roots and not typed.startswith("-"):
            return "", False
        root = plain if negated else begun.pop() if root not in self.roots and len(begun) == 1 else root
        if root not in self.roots:
            others = [engine for engine in ENGINES if engine != self.engine and root in {*_flags(engine), *known()[engine]["aliases"]}]
            whose = f", a flag of {' and '.join(others)}" if others else ""
            near = nearest(root, self.roots)
            raise ConfigError(f"launch: found {typed}{whose}, expected a flag of {self.engine}{near if 'mean' in near else ''}")
        name = self.table["aliases"].get(root, root) + dot + rest
        name = self.table["aliases"].get(name, name)
        inside = [flag for flag in self.flags if flag.startswith(f"{root}.")] if dot and name not in self.flags else []
        if alike := get_close_matches(name, inside, 1, ALIKE):
            raise ConfigError(f"launch: found {typed}, expected {alike[0]}")
        return name, negated

    def error(self, quantity: str, expected: str) -> ConfigError:
        """What says a quantity, and what was expected."""
        names = [f"{self.typed[name]} {value}" for name, value in self.settings.items() if self.flags.get(name, "").lstrip("!") == quantity]
        return ConfigError(f"launch: found {' and '.join(names) or f'no {quantity}'}, {expected}")

    @property
    def quiet(self) -> list[str]:
        """Flags that move no answer, as they were typed."""
        names = self.table["quiet"].split()
        return [self.typed[name] for name in self.settings if name in names or name.partition(".")[0] in names]

    def said(self) -> dict[str, Any]:
        """Quantities. Flags that may move an answer and say none go to `beside`."""
        found: dict[str, Any] = {}
        switches = {name for _, piece in _pieces(self.engine) for name in piece}
        for name, text in self.settings.items():
            quantity = self.flags.get(name, "")
            if not quantity:
                self.beside += [] if name in switches or self.typed[name] in self.quiet else [self.typed[name]]
                continue
            value = self._value(self.typed[name], quantity.lstrip("!"), FLIPPED.get(text.lower(), text) if quantity[0] == "!" else text)
            if value is not None and found.setdefault(quantity.lstrip("!"), value) != value:
                raise self.error(quantity.lstrip("!"), "expected one value")
        return found

    def _value(self, typed: str, quantity: str, text: str) -> Any:
        """The value of a quantity; None where the engine decides, or where it is not counted."""
        table, usual = known()["words"], known()["usual"].get(quantity)
        words = table.get(quantity, {}) | self.table.get("words", {}).get(quantity, {})
        words = {key.casefold(): value for key, value in words.items()} or ({usual: "", **dict.fromkeys(NOTHING, "")} if usual else {})
        words = words or (TRUE_OR_FALSE if quantity in TRUTHS else {})
        if words and text.lower() not in words:
            if quantity in TRUTHS:
                raise ConfigError(f"launch: {typed}: found {show(text)}, expected true or false")
            self.beside.append(f"{typed} {text}")
        if words:
            return None if (value := words.get(text.lower(), "")) == "" else value
        return text if quantity == "pool" else self._number(typed, quantity, text)

    def _number(self, typed: str, quantity: str, text: str) -> float | int | None:
        if text.lower() in NOTHING:
            self.beside += [f"{typed} {text}"] if quantity == "step_tokens" else []
            return None
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([kKmM]?)", text)
        number = float(match[1]) * SUFFIXES[match[2]] if match else -1.0
        if quantity == "memory_part":
            if not 0 < number <= 1:
                raise ConfigError(f"launch: {typed}: found {show(text)}, expected a part above 0, at most 1")
            return number
        least = quantity not in MAY_BE_NONE
        if number != int(number) or not least <= number <= MOST_NUMBER:
            raise ConfigError(f"launch: {typed}: found {show(text)}, expected a whole number from {least:d} to {MOST_NUMBER}")
        return number if quantity == "polled_steps" else int(number)

    def drafts(self, said: dict[str, Any]) -> int:
        """Tokens that MTP layers draft; 0 for other drafts, which are not counted."""
        count, method = said.get("draft_tokens"), said.get("method")
        if count is not None and method is None and "method" not in map(self.flags.get, self.settings):
            raise self.error("draft_tokens", "expected the method beside it, such as mtp")
        if method is None:
            return 0
        count = self.table.get("drafts") if count is None else count
        if count is None:
            raise self.error("method", "expected the number of draft tokens beside it")
        if said.get("draft_tokens_and_one", count + 1) != count + 1:
            raise self.error("draft_tokens_and_one", f"expected {count + 1}: {count} steps and one, as drafts are a chain")
        return int(count)

    def layout(self, said: Mapping[str, Any], whole: WholeModel) -> tuple[ServeLayout, int]:
        """The layout, and the replicas that the line says. Of layouts with its degrees, the one whose own line differs least."""
        pieces, unless = _pieces(self.engine), self.table.get("replicas", [])
        if "all_slots" in said and whole.layer is not None:
            said = {**said, "slots": said["all_slots"] - whole.layer.n_experts}
        stated, dp, replicas = {value for _, piece in pieces for value in piece.values()}, said.get("dp", 1), 0
        if dp > 1 and (whole.layer is None or (unless and not any(name in self.settings for name in unless))):
            dp, replicas = 1, dp
        pairs = [(said.get("tp", 1), dp)]
        if "gpus" in stated:
            gpus = said.get("gpus", 1)
            if gpus % dp:
                raise self.error("dp", f"expected a divisor of {gpus} GPUs")
            pairs = [(gpus // n, n) for n in ([dp] if "dp" in stated else _divisors(gpus))]
        found: list[tuple[int, ServeLayout]] = []
        refused = ""
        for tp, groups in pairs:
            eps = [said["ep"]] if "ep" in said else [1] if whole.layer is None else _divisors(tp * groups)
            for ep in reversed(eps) if said.get("ep_system") else eps:
                layout = ServeLayout(tp, groups, ep, said.get("slots", 0), said.get("pp", 1))
                values = dict.fromkeys(("hosts", "kv", "wide", "part", "gathered_steps", "prefill", "decode", "deepep", "one_sided"), 0) | {
                    "tp": tp, "dp": groups, "ep": ep, "pp": layout.pp, "cut": layout.moe_tp, "slots": layout.slots, "together": 1,
                    "draft_tokens": said["draft_tokens"], {"deepep": "deepep", "trtllm-a2a": "one_sided"}.get(said.get("ep_system", ""), ""): 1,
                }  # fmt: skip
                if reasons := [rule["refuses"] for rule in held(tables()[self.engine]["rules"], values) if "refuses" in rule]:
                    refused = reasons[0]
                    continue
                found.append((sum(self._differs(when, piece, values) for when, piece in pieces), layout))
        if not found:
            raise ConfigError(f"launch: {self.engine} {tables()[self.engine]['version']} does not start this line: {refused}")
        return min(found, key=lambda one: one[0])[1], replicas

    def _differs(self, when: Mapping[str, int], piece: Mapping[str, str], values: Mapping[str, Any]) -> int:
        """How a rule and the line differ: a flag that stands there and should not weighs more than one that is left to the engine."""
        if not {*when} <= {"tp", "dp", "ep", "cut", "together", "deepep", "one_sided"} or not when:
            return 0
        holds = all(values[name] >= least for name, least in when.items())
        stands = [self.settings.get(name) == value[1:] for name, value in piece.items() if value.startswith("=")]
        return sum((2 if there else 1) for there in stands if there != holds)


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def _dashed(name: str) -> str:
    return name.replace("_", "-") if name.startswith("-") else name if name.isupper() else "--" + name.replace("_", "-")


def _leaves(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(name behind dots, value as text) of a tree of settings."""
    if not isinstance(tree, Mapping):
        text = tree if isinstance(tree, str) else json.dumps(tree)
        yield before, text
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{before}.{key}" if before else str(key))


def _arguments(
    words: Iterable[str], switch: Callable[[str], bool] = lambda name: False, positional: list[str] | None = None,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """(flag, value) of words; a flag without a value is "true". Words behind no flag, and behind a `switch`, go to `positional`."""
    name, values, found = "", list[str](), list[tuple[str, str]]()
    for word in [*words, "--"]:
        if re.match(r"--?[A-Za-z]|--$", word):
            if name:
                found.append((name, " ".join(values) if values else "true"))
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        elif name and not (switch(name) and word.lower() not in ("true", "false", "1", "0")) and not (values and values[0].startswith("{")):
            values.append(word)
        elif positional is not None:
            positional.append(word)
    return iter(found)


def _command(text: str) -> tuple[str, list[tuple[str, str]], list[str], dict[str, str]]:
    """The engine, variables of the environment, words behind what starts it, and files that the text writes."""
    files: dict[str, str] = {}

    def keep(match: re.Match[str]) -> str:
        if name := re.search(r">\s*(\S+)", match[1] + match[4]):
            files[str(Path(name[1]))] = match[5]
        return ""

    text = SUBSTITUTION.sub("$COMMAND", re.sub(r"\\[ \t]*\r?\n", " ", HEREDOC.sub(keep, text.replace("\r\n", "\n"))))
    lexer = shlex.shlex(re.sub(r"(?m)(^|\s)#.*$", "", text), posix=True, punctuation_chars="\n;&|<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r\v\f", True, ""
    try:
        words = [*lexer]
    except ValueError as error:
        raise ConfigError(f"launch: found {str(error).lower()}, expected closed quotes") from None
    variables: dict[str, str] = {}
    found: list[tuple[str, list[str], list[str]]] = []
    for command in _commands(words):
        if ">" in command and command[0] in ("printf", "echo"):
            at = command.index(">")
            said = [word.replace("\\n", "\n") for word in command[1:at] if "%s" not in word and not re.fullmatch("-[en]+", word)]
            files[str(Path(*command[at + 1 : at + 2]))] = "\n".join(said)
            continue
        variables |= dict(word.split("=", 1) for word in command if re.match(r"[A-Za-z_]\w*=", word))
        expanded = [string.Template(word).safe_substitute(variables) for word in command]
        if start := _started(expanded) or _started([part for word in expanded for part in word.split()]):
            found.append(start)
    if len(found) != 1:
        starts = [known()[name]["starts"][0] for name in ENGINES]
        raise ConfigError(f"launch: found {len(found) or 'no'} commands of an engine in {show(text.strip())}, expected one of {', '.join(starts)}")
    name, _, rest = found[0]
    return name, [*variables.items()], rest, files


def _commands(words: Iterable[str]) -> Iterator[list[str]]:
    """Commands between separators; numbers and targets of redirections stay with theirs."""
    command: list[str] = []
    for word in [*words, "\n"]:
        if set(word) <= set("\n;&|") and word:
            if command:
                yield command
            command = []
        else:
            command.append(word)


def _started(command: list[str]) -> tuple[str, list[str], list[str]] | None:
    """(engine, words before, words behind) of a command that starts one."""
    for name in ENGINES:
        for start in known()[name]["starts"]:
            parts = start.split()
            for at in range(len(command) - len(parts) + 1):
                first, *rest = command[at : at + len(parts)]
                fits = first.startswith(parts[0][:-1]) if start.endswith("*") else first.rpartition("/")[2] == parts[0] and rest == parts[1:]
                if fits:
                    behind = command[at + len(parts) :]
                    end = next((i for i, word in enumerate(behind) if set(word) <= set("<>")), len(behind))
                    return name, command[:at], behind[: end - (end < len(behind) and behind[end - 1] in ("1", "2"))]
    return None
