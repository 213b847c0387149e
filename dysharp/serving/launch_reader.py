"""The launch line of an engine, read by the same rules that write one (`launch.toml`); what other flags say is data, too (`launch_flags.toml`).

Text is data: nothing is run, and no variables are expanded but those that the text itself sets. A setting is a flag, a variable of the environment,
or a name inside JSON or YAML behind a dot: "--speculative-config.method". Names have dashes, whatever was typed.
"""

import functools
import json
import re
import shlex
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby, takewhile
from math import inf
from pathlib import Path
from typing import Any

from dysharp.base import AnyMapping, ByName, Cells, ConfigError, GiB, Texts, frozen, json_of, nearest, parse_yaml, read_text, read_toml, show
from dysharp.model import formats_of, published
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.exchange import EP_SYSTEMS
from dysharp.serving.launch import FILE, held, tables
from dysharp.serving.layout import ServeLayout
from dysharp.specs import WholeModel, list_whole_models, load_whole

MOST, MOST_NUMBER = 1 << 16, 1 << 24
"""Most characters of a line and bytes of a file that it names; largest number."""
ALIKE = 0.85
"""Likeness from which a name inside a setting is a misspelt one."""
HEREDOC, TARGET = re.compile(r"<<-?\s*['\"]?(\w+)"), re.compile(r"(?<![<>])>\s*(\S+)")
"""The word that ends lines of a file within a text, and the file's name."""
LEFT_OUT = re.compile(r"(?m)\\[ \t]*\n|(?:^|(?<=\s))#.*$|\s\d?>&\d\b|(?<=\s)\d(?=>)")
"""Line continuations, comments and redirections of numbered streams."""
SUBSTITUTION = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`")
SEPARATORS, REDIRECTIONS, JOINT = frozenset("\n;&|"), frozenset("\n;&|<>"), "\x1f"
BY_ENGINES = re.compile("(VLLM|SGLANG|SGL|TRTLLM|TLLM|NCCL|NVSHMEM|DEEPEP|DG)_")
"""Beginnings of variables that engines and their libraries read."""
ONE = "--set"
ENGINES = [name for name in tables() if name != "hosts"]
FLIPPED = {"true": "false", "false": "true", "1": "false", "0": "true"}
NOTHING = ("auto", "none", "null", "-1")


@frozen
class Launch:
    """What a launch line starts. `engine`: its rules, with those of the line. `model`: with the checkpoint's name and precision, and the line's
    longest request. `options`: of `serve`, that it stands for: mtp, and where it says them precision, kv, ep_system and gpus (of all its replicas).
    `prefixes`: it caches them. `lines`: how it was read, what it does not say, flags that move no answer, and those that may and are not counted.
    """

    engine: Engine
    model: WholeModel
    layout: ServeLayout
    options: ByName
    prefixes: bool
    lines: Texts


@functools.cache
def known() -> ByName:
    """What flags say."""
    path = FILE.with_name("launch_flags.toml")
    return read_toml(path)


def read_launch(text: str, model: str | WholeModel | None = None, hbm_bytes: float = inf, gpu: str = "") -> Launch:
    """A launch line, or @FILE with one. `model`: the model of a path that the line names. `hbm_bytes`, `gpu`: defaults differ by them.

    Raises `ConfigError` in one line.
    """
    line = _Line(read_text(Path(text[1:]), MOST) if text.startswith("@") else text)
    whole, said = _model(line.checkpoint, model), line.said()
    if said.get("pool", NOTHING[0]) not in NOTHING:
        raise line.error("pool", "expected a server of prompts and decoding; --pools N:LAYOUT;N:LAYOUT replays two pools")
    said["draft_tokens"] = line.drafts(said)
    if (kernels := said.pop("deepep", "")) and said.get("ep_system") == "deepep":
        said["ep_system"] += kernels
    layout, replicas = line.layout(said, whole)
    said |= {"most_requests": said.get("batch", -(-said.get("all_batch", 0) // layout.dp))} if {"batch", "all_batch"} & said.keys() else {}
    version = f"{line.engine} {tables()[line.engine]['version']}"
    silent = line.table.get("silent", [])
    defaults = [one for one in silent if hbm_bytes < one.get("below_GiB", inf) * GiB or "below_GiB" not in one or gpu in one.get("also", ())]
    forms = known()["told"]
    engine = replace(engine_of(line.engine), **{key: one[key] for one in [*defaults, said] for key in forms if key in one})
    told = {key: form.format(getattr(engine, key)) for key, form in forms.items() if form and (key in said or getattr(engine, key))}
    unsaid = [words for key, words in told.items() if key not in said]
    if min(layout.dp, layout.ep) > 1 and "ep_system" not in map(line.flags.get, line.settings) and "exchange" in line.table:
        said["ep_system"] = line.table["exchange"]
        unsaid.append(f"EP system {said['ep_system']}")
    own, kind = formats_of(published(whole), model=whole), said.get("precision", "")
    if (kind.startswith("fp8") and own.narrow) or (kind == "int4" and any(held.startswith(kind) for held in own.weights())):
        del said["precision"]
    options = {"mtp": said["draft_tokens"]} | {key: said[key] for key in ("precision", "kv", "ep_system") if key in said}
    options |= {"gpus": replicas * layout.gpus} if replicas else {}
    read = [f"{line.checkpoint} ({whole.name})", layout.name + f" x {replicas}" * (replicas > 0), *(told[key] for key in told if key in said)]
    others = {"launch line": read, f"not in it, as {version} starts": unsaid,
              "does not move this answer": line.quiet, "may move it and is not counted": line.beside}  # fmt: skip
    lines = tuple(f"{what}: {', '.join(dict.fromkeys(names))}" for what, names in others.items() if names)
    return Launch(engine, replace(whole, context=said.get("context", whole.context)), layout, options, said.get("prefixes", True), lines)


def _model(named: str, given: str | WholeModel | None) -> WholeModel:
    """The model of a checkpoint's name: the packaged one with the longest name that begins it, where behind it stand words of precision or dates."""
    precisions, base = known()["precisions"], named.rstrip("/").rpartition("/")[2]
    told = re.compile(f"[-_](?:{'|'.join(word for word, value in precisions.items() if value)})$")
    names = {told.sub("", load_whole(name).repository.rpartition("/")[2]): name for name in list_whole_models()} | known()["models"]
    behind = rf"((?:[-_](?:{'|'.join(precisions)}|\d+))*)"
    for key in sorted(filter(None, names), key=len, reverse=True):
        if match := re.fullmatch(re.escape(key) + behind, base, re.IGNORECASE):
            words = [value for word, value in precisions.items() if value and re.search(rf"[-_]{word}(?![^-_])", match[1], re.IGNORECASE)]
            found = replace(load_whole(names[key] if given is None else given), **known()["changes"].get(key, {}))
            if found.name != names[key] and found.name in list_whole_models():
                raise ConfigError(f"launch: found {named}, which is {names[key]}, beside the model {found.name}, expected one model")
            words += ["bf16"] if told.search(found.repository) else []  # a name that says another precision than the packaged one, or none
            return replace(found, repository=named, checkpoint=published(found, words[0]) if words else found.checkpoint)
    if given is None and not Path(named).exists():
        raise ConfigError(f"launch: model {show(named)}: not packaged; name its shape beside the line: dysharp serve MODEL|FILE --launch ...")
    return load_whole(named if given is None else given)


@functools.cache
def _pieces(engine: str) -> list[tuple[Mapping[str, int], Cells]]:
    """What templates write: when, and {setting: quantity, or a literal behind "="}. Numbers stand for quantities while a template is read."""
    rules = [{"when": {}, "adds": tables()[engine]["launch"]}, *tables()[engine]["rules"]]
    names = sorted({field for rule in rules for key in ("adds", "line") for field in re.findall(r"(?<!{){(\w+)}", rule.get(key, ""))})
    codes = {name: str(10**6 + i) for i, name in enumerate(names)}
    meant, found = {code: name for name, code in codes.items()}, []
    for rule in rules:
        adds, line = (shlex.split(rule.get(key, "").format(**codes)) for key in ("adds", "line"))
        trees = {name: json_of(value, engine) if value.startswith("{") else value for name, value in _arguments(adds) if name}
        settings = {_dashed(name): value for name, value in _leaves(trees | parse_yaml("\n".join(line), engine))}
        found.append((rule["when"], {name: meant.get(value, f"={value}") for name, value in settings.items()}))
    return found


@functools.cache
def _flags(engine: str) -> Cells:
    """Every setting that an engine has -> the quantity that it says, "" without one, a literal behind "="."""
    table = known()[engine]
    plain = dict.fromkeys([*table["quiet"].split(), *table["beside"].split(), *known()["files"], ONE, "--model", "--model-path"], "")
    return {name: value for _, piece in _pieces(engine) for name, value in piece.items()} | plain | {**table["reads"]}


class _Line:
    """One command while it is read: `settings`, and their names as they were `typed`."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST:
            raise ConfigError(f"launch: found {len(text)} characters, expected at most {MOST}")
        self.engine, variables, words, self.files = _command(text)
        self.table, self.flags = known()[self.engine], _flags(self.engine)
        self.roots = {*self.table["aliases"], *(flag.partition(".")[0] for flag in self.flags)}
        self.settings, self.typed = Cells(), Cells()
        self.beside = [name for name in variables if BY_ENGINES.match(name) and name not in self.roots]
        for name, value in [*((name, value) for name, value in variables.items() if name in self.roots), *_arguments(words)]:
            self._add(name or "--model", value)
        models = [*dict.fromkeys(self.settings.pop(name) for name in ("--model", "--model-path") if name in self.settings)]
        if len(models) != 1 or "$" in models[0] or " " in models[0]:
            raise ConfigError(f"launch: found {' and '.join(map(show, models)) or 'no model'}, expected one model behind {self.table['start']}")
        self.checkpoint = models[0]

    def _add(self, name: str, value: str) -> None:
        """A setting as it was typed; a file or a tree becomes its leaves."""
        path, files, file = self._known(name), known()["files"], Path(value)
        if path in files:
            content = self.files[str(file)] if str(file) in self.files else read_text(file, MOST)
            leaves = [(files[path] + key, leaf) for key, leaf in _leaves(parse_yaml(content, value))]
        elif path == ONE:
            leaves = [("--" + value.partition("=")[0], value.partition("=")[2])]
        elif value.startswith("{") and path not in self.table["quiet"].split():
            leaves = [(f"{name}.{key}", leaf) for key, leaf in _leaves(json_of(value, f"launch: {name}"))]
        elif self.settings.setdefault(path, value) != value:
            raise ConfigError(f"launch: found {self.typed[path]} {self.settings[path]} and {name} {value}, expected one value")
        else:
            self.typed[path], leaves = name, []
        for leaf in leaves:
            self._add(*leaf)

    def _known(self, typed: str) -> str:
        """The setting of a name. Raises `ConfigError` with the nearest one."""
        root, dot, rest = _dashed(typed).partition(".")
        root, aliases = root if root in self.roots else re.sub("^--no-", "--", root), self.table["aliases"]
        if root not in self.roots:
            others = [engine for engine in ENGINES if root in {*_flags(engine), *known()[engine]["aliases"]}]
            whose = f", a flag of {' and '.join(others)}" if others else ""
            near = nearest(root, self.roots)
            raise ConfigError(f"launch: found {typed}{whose}, expected a flag of {self.engine}{near if 'mean' in near else ''}")
        name = aliases.get(root, root) + dot + rest
        name = str(aliases.get(name, name))
        inside = [flag.partition(".")[2] for flag in self.flags if flag.startswith(f"{root}.")] if dot and name not in self.flags else []
        if near := "".join(get_close_matches(rest, inside, 1, ALIKE)):  # without what they share
            raise ConfigError(f"launch: found {typed}, expected {root}.{near}")
        return name

    def error(self, quantity: str, expected: str) -> ConfigError:
        """What says a quantity, and what was expected."""
        names = [f"{self.typed[name]} {value}" for name, value in self.settings.items() if self.flags.get(name, "").lstrip("!") == quantity]
        return ConfigError(f"launch: found {' and '.join(names) or f'no {quantity}'}, {expected}")

    @property
    def quiet(self) -> list[str]:
        """Flags that move no answer, as they were typed."""
        names = self.table["quiet"].split()
        return [self.typed[name] for name in self.settings if name in names or name.partition(".")[0] in names]

    def said(self) -> ByName:
        """Quantities. Flags that may move an answer and say none go to `beside`."""
        found: ByName = {}
        for name, text in self.settings.items():
            quantity, typed = self.flags.get(name, ""), self.typed[name]
            if not quantity or quantity in ("hosts", "host"):
                self.beside += [] if typed in self.quiet else [typed]
            elif not quantity.startswith("="):
                key = quantity.lstrip("!")
                value = self._value(typed, key, FLIPPED.get(text.lower(), text) if key != quantity else text)
                if value not in (None, "") and found.setdefault(key, value) != value:
                    raise self.error(key, "expected one value")
        return found

    def _value(self, typed: str, quantity: str, text: str) -> Any:
        """The value of a quantity; None where the engine decides, or where it is not counted."""
        words = {**known()["words"].get(quantity, {}), **self.table.get("words", {}).get(quantity, {})}
        if words or text.lower() in NOTHING:
            counted = text.lower() in words or (text.lower() in NOTHING and quantity != "step_tokens")
            self.beside += [] if counted else [f"{typed} {text}".removesuffix(" false").removesuffix(" true")]
            return words.get(text.lower())
        if quantity == "pool":
            return text
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kKmM]?)", text)
        number = float(match[1]) * known()["suffixes"].get(match[2], 1) if match else -1.0
        part, least = quantity == "memory_part", int(quantity not in ("slots", "draft_tokens", "gathered_steps"))
        expected = "a part above 0, at most 1" if part else f"a whole number from {least} to {MOST_NUMBER}"
        if not (0 < number <= 1 if part else number.is_integer() and least <= number <= MOST_NUMBER):
            raise ConfigError(f"launch: {typed}: found {show(text)}, expected {expected}")
        return number if part or quantity == "polled_steps" else int(number)

    def drafts(self, said: AnyMapping) -> int:
        """Tokens that MTP layers draft; 0 for other drafts, which are not counted."""
        count = said.get("draft_tokens", self.table.get("drafts"))
        if "draft_tokens" in said and "method" not in map(self.flags.get, self.settings):
            raise self.error("draft_tokens", "expected the method beside it, such as mtp")
        if "method" not in said:
            return 0
        if count is None:
            raise self.error("method", "expected the number of draft tokens beside it")
        if said.get("draft_tokens_and_one", count + 1) != count + 1:
            raise self.error("draft_tokens_and_one", f"expected {count + 1}: {count} steps and one, as drafts are a chain")
        return int(count)

    def layout(self, said: AnyMapping, whole: WholeModel) -> tuple[ServeLayout, int]:
        """The layout, and the replicas that the line says, else 0. Of layouts with its degrees, the one whose own line differs least."""
        pieces, unless, experts = _pieces(self.engine), self.table.get("replicas", []), whole.layer.n_experts if whole.layer else 0
        stated, dp, replicas = {value for _, piece in pieces for value in piece.values()}, said.get("dp", 1), 0
        if dp > 1 and (whole.layer is None or (unless and self.settings.keys().isdisjoint(unless))):
            dp, replicas = 1, dp
        stage = said.get("gpus", said.get("tp", 1) * dp)
        if stage % dp:
            raise self.error("dp", f"expected a divisor of {stage} GPUs")
        groups = [dp] if "dp" in stated else _divisors(stage)
        eps = [said["ep"]] if "ep" in said else _divisors(stage if experts else 1)
        system = said.get("ep_system", "")
        found, refused = list[tuple[int, ServeLayout]](), ""
        for dp, ep in ((dp, ep) for dp in groups for ep in (reversed(eps) if system else eps)):
            slots = max(0, said["all_slots"] - experts) if "all_slots" in said else said.get("slots", 0)
            layout = ServeLayout(stage // dp, dp, ep, slots, said.get("pp", 1))
            values = Counter({system: 1, "tp": layout.tp, "dp": dp, "ep": ep, "pp": layout.pp, "cut": layout.moe_tp, "slots": slots,
                              "draft_tokens": said["draft_tokens"], "together": 1})  # fmt: skip
            reasons = [rule["refuses"] for rule in held(tables()[self.engine]["rules"], values) if "refuses" in rule]
            refused = "".join(reasons[:1]) or refused
            found += [] if reasons else [(sum(self._differs(when, piece, values) for when, piece in pieces), layout)]
        if not found:
            raise ConfigError(f"launch: {self.engine} {tables()[self.engine]['version']} does not start this line: {refused}")
        return min(found, key=lambda one: one[0])[1], replicas

    def _differs(self, when: Mapping[str, int], piece: Mapping[str, str], values: Mapping[str, int]) -> int:
        """How a rule and the line differ: a flag that stands there and should not weighs more than one that is left to the engine."""
        if not when or not {*when} <= {"tp", "dp", "ep", "cut", "together", *EP_SYSTEMS}:
            return 0
        stands = [self.settings.get(name) == value[1:] for name, value in piece.items() if value.startswith("=")]
        return sum(1 + int(there) for there in stands if there != bool(held([{"when": when}], values)))


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def _dashed(name: str) -> str:
    return name if name.isupper() else ("" if name.startswith("-") else "--") + name.replace("_", "-")


def _leaves(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(name behind dots, value as text) of a tree of settings."""
    if not isinstance(tree, Mapping):
        yield before, tree if isinstance(tree, str) else json.dumps(tree)
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        yield from _leaves(value, f"{before}.{key}" if before else str(key))


def _arguments(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(flag, value) of words; a flag without a value is "true". Words before the first flag stand behind ""."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            found.append((name, [value] if equals else []))
        else:
            found[-1][1].append(word)
    return ((name, " ".join(values) or "true") for name, values in found if name or values)


def _command(text: str) -> tuple[str, Cells, list[str], Cells]:
    """The engine, variables of the environment, words behind what starts it, and files that the text writes."""
    files, rows, kept = Cells(), iter(text.splitlines()), list[str]()
    for row in rows:
        if mark := HEREDOC.search(row):
            body = "\n".join(takewhile(lambda row: row.strip() != mark[1], rows))
            files |= {str(Path(name)): body for name in TARGET.findall(row)}
        else:
            kept.append(row)
    text = SUBSTITUTION.sub("$COMMAND", LEFT_OUT.sub(" ", "\n".join(kept)))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="\n;&|<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r\v\f", True, ""
    try:
        commands = [[*group] for apart, group in groupby(lexer, lambda word: {*word} <= SEPARATORS and word != "") if not apart]
    except ValueError as error:
        raise ConfigError(f"launch: found {str(error).lower()}, expected closed quotes") from None
    variables, found = Cells(), list[tuple[str, list[str]]]()
    for command in commands:
        if ">" in command and command[0] in ("printf", "echo"):
            said = [word.replace("\\n", "\n") for word in command[1 : command.index(">")] if "%s" not in word and not re.fullmatch("-[en]+", word)]
            files[str(Path(*command[command.index(">") + 1 :][:1]))] = "\n".join(said)
            continue
        variables |= dict(word.split("=", 1) for word in command if re.match(r"[A-Za-z_]\w*=", word))
        line = JOINT.join(string.Template(word).safe_substitute(variables) for word in command)
        for name in ENGINES:
            start = rf"(?:^|{JOINT})(?:[^{JOINT}]*/)?(?:{known()[name]['starts']})(?:{JOINT}|$)".replace(" ", JOINT)
            if match := re.search(start, line) or re.search(start, re.sub(r"[ \t]+", JOINT, line)):
                behind = match.string[match.end() :].split(JOINT)
                found.append((name, [*filter(None, takewhile(lambda word: not word or not {*word} <= REDIRECTIONS, behind))]))
    if len(found) != 1:
        starts = ", ".join(known()[name]["start"] for name in ENGINES)
        raise ConfigError(f"launch: found {len(found) or 'no'} commands of an engine in {show(text.strip())}, expected one of {starts}")
    return found[0][0], variables, found[0][1], files
