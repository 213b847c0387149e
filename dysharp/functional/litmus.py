"""Litmus tests: small programs as files, their outcomes in every order of events, and what a deleted rule lets through (docs/memory-model.md).

Orders that differ only in events at different GPUs and switch planes are run once (sleep sets): such events touch nothing in common.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import ByName, ConfigError, IsaError, Rows, Texts, check_word, frozen, json_of, parse_toml, read_text
from dysharp.functional.memory_models import HANGS, ISAS, PART, TRAP, AbstractMachine
from dysharp.functional.memory_models import INSTRUCTION as ABSTRACT
from dysharp.functional.multicast import DyMulticastObjectProp
from dysharp.functional.network.queues import Rules
from dysharp.functional.network.wires import MOVE
from dysharp.functional.orders import Event
from dysharp.functional.runtime import Device, Handle
from dysharp.specs.fields import problems, raise_if

PACKAGED = Path(__file__).parent / "litmus_files"
MOST_RUNS = 200_000
BLOCKS, BLOCK, BEGIN = "xyzw", re.compile(r"[xyzw]@\d+"), re.compile(r"[xyzw]@\d+(=\d{1,2})?")
DYSHARP = "dysharp"
MOST_GPUS = 16
INSTRUCTION = re.compile(r"st [xyzw] \d{1,9} @\d+(,\d+)*|ld [xyzw] @\d+(,\d+)* -> \w+|fence|done|notify \d+ [xyzw]|wait [xyzw]")
"""`done` waits for all own instructions. Behind `@` stand targets."""
NAMED = re.compile(r"(?:@|,|notify )(\d+)")
"""A GPU in an instruction, or in `x@1`."""


@frozen
class Litmus:
    """A program. `threads`: of each GPU, its instructions. Expert `e` is on GPU `e`; a block is one vector; `show`, `init`: `x@1`, a block whose
    value belongs to the outcome, and one that holds 0 at the start.

    `isa`: "dysharp" runs on the functional machine, others on rules (`memory_models.ISAS`), where blocks hold 0 at the start or `x@1=9`.

    `allowed`: all outcomes. `without`: {one of `rules`: outcomes that it forbids}. A register or block is named with its value, `?` = never written.
    """

    about: str
    threads: tuple[Texts, ...]
    allowed: Texts
    without: Mapping[str, Texts] = field(default_factory=dict)
    show: Texts = ()
    init: Texts = ()
    planes: int = 1
    isa: str = DYSHARP

    @property
    def rules(self) -> Texts:
        """All that may be deleted."""
        return tuple(Rules.__dataclass_fields__ if self.isa == DYSHARP else ISAS[self.isa])


@frozen
class _Verdict:
    """What a Litmus reaches: `outcomes` in all orders, `reached` {rule: outcomes without it}, `faults` in words."""

    name: str
    outcomes: Texts
    reached: Mapping[str, Texts]
    faults: Texts

    @property
    def sentence(self) -> str:
        """In words."""
        found = [f"{self.name}: {', '.join(self.outcomes)}", *(f"without {rule} also {', '.join(more)}" for rule, more in self.reached.items())]
        return "; ".join([*found, *(f"FAULT: {text}" for text in self.faults)])


class _Chosen(list[Event]):
    """A pool whose caller says which event is next."""

    next: Event | None = None

    def add(self, event: Event, time: int = 0) -> None:
        self.append(event)

    def pop(self) -> Event:  # type: ignore[override]
        assert self.next is not None
        self.remove(self.next)
        return self.next


class _Machine:
    """A Litmus under way."""

    def __init__(self, test: Litmus, rules: Rules) -> None:
        self.pool, self.test, self.trapped = _Chosen(), test, False
        n = len(test.threads)
        self.device = Device(n, 1, planes=test.planes, pool=self.pool, rules=rules)
        self.obj = self.device.create(DyMulticastObjectProp(16, stage=1), len(BLOCKS))
        for gpu in range(n):
            self.obj.bind(gpu, [len(BLOCKS)])
        for word in test.init:
            gpu, address = int(word[2:]), self.obj.address(BLOCKS.find(word[0]))
            self.device.dymultimem_st(gpu, self.obj, address, np.zeros(4, np.int32), [gpu])
        while self.pool:
            self.pool.next = self.pool[0]
            self.device.step()
        self.at, self.issued = [0] * n, [list[Handle]() for _ in range(n)]
        self.registers: dict[str, Handle] = {}
        self.go_on()

    def go_on(self) -> None:
        """Every GPU issues until it waits. Earlier is never less: a packet may stay on its wire."""
        for gpu, thread in enumerate(self.test.threads):
            while self.at[gpu] < len(thread) and self.issue(gpu, thread[self.at[gpu]].split()):
                self.at[gpu] += 1

    def issue(self, gpu: int, words: list[str]) -> bool:
        """Whether the instruction could go."""
        op = words[0]
        block = BLOCKS.find(words[-1] if op in ("notify", "wait") else words[min(1, len(words) - 1)])
        if op == "wait":
            return any(told[:2] == (gpu, block) for told in self.device.told)
        if op == "done":
            return all(handle.done for handle in self.issued[gpu])
        if op == "fence":
            self.device.fence(gpu)
        elif op == "notify":
            self.device.notify(gpu, int(words[1]), block, gpu)
        else:
            address = self.obj.address(block)
            if op == "st":
                data = np.full(4, int(words[2]), np.int32)
                self.issued[gpu].append(self.device.dymultimem_st(gpu, self.obj, address, data, _targets(words[3])))
            else:
                self.registers[words[4]] = handle = self.device.dymultimem_ld_reduce(gpu, self.obj, address, 4, _targets(words[2]))
                self.issued[gpu].append(handle)
        return True

    def step(self, event: Event) -> None:
        """`event` happens."""
        self.pool.next = event
        try:
            self.device.step()
            self.go_on()
        except IsaError:
            self.trapped = True

    @property
    def events(self) -> list[Event]:
        """What may happen next."""
        return self.pool

    def outcome(self, show: Sequence[str]) -> str:
        """Registers and shown blocks, in words."""
        if self.trapped:
            return TRAP
        if any(at < len(thread) for at, thread in zip(self.at, self.test.threads, strict=True)):
            return HANGS
        values = {name: handle.value for name, handle in sorted(self.registers.items())}
        for shown in show:
            block, _, gpu = shown.partition("@")
            layout = {int(token): row for row, token in enumerate(self.obj.layout(int(gpu), 0))}
            row = layout.get(BLOCKS.find(block))
            values[shown] = self.unwritten if row is None else self.obj.memory(int(gpu), 0, 0)[row]
        return " ".join(f"{name}={'?' if np.array_equal(value, self.unwritten) else value[0]}" for name, value in values.items())

    @property
    def unwritten(self) -> Any:
        return self.device.number.poison((4,))


def _targets(word: str) -> list[int]:
    return [int(expert) for expert in word.removeprefix("@").split(",")]


def _place(event: Event) -> tuple[str, int]:
    """Where an event acts: at a switch plane, or at a GPU."""
    kind, what = event
    if kind == PART:
        return "all", 0
    if kind != MOVE:
        return "gpu", what[0]
    return ("plane", what.plane) if what.up else ("gpu", what.gpu)


def _machine(test: Litmus, deleted: str = "") -> _Machine | AbstractMachine:
    """At its start, without the rule `deleted`."""
    if test.isa == DYSHARP:
        return _Machine(test, replace(Rules(), **{rule: False for rule in (deleted,) if rule}))
    begin = {(int(gpu), word[0]): int(value or 0) for word in test.init for gpu, _, value in [word[2:].partition("=")]}
    return AbstractMachine(test.isa, test.threads, {*test.rules} - {deleted}, begin)


def _outcomes(test: Litmus, deleted: str = "") -> Texts:
    """Every outcome of `test`, sorted, without the rule `deleted`. Raises ConfigError for more than `MOST_RUNS` orders."""
    found, runs = set[str](), 0
    stack: list[tuple[tuple[Event, ...], frozenset[Event]]] = [((), frozenset())]
    while stack:
        prefix, sleep = stack.pop()
        machine, runs = _machine(test, deleted), runs + 1
        if runs > MOST_RUNS:
            raise ConfigError(f"litmus: found more than {MOST_RUNS} orders, expected fewer (fewer instructions, targets or planes)")
        for event in prefix:
            machine.step(event)
        while machine.events and not machine.trapped:
            awake = [event for event in machine.events if event not in sleep]
            if not awake:
                break  # another run has this order
            asleep = set(sleep)
            for event in awake:
                stack.append(((*prefix, event), frozenset(one for one in asleep if _place(one) != _place(event))))
                asleep.add(event)
            prefix, sleep = stack.pop(len(stack) - len(awake))
            machine.step(prefix[-1])
        else:
            found.add(machine.outcome(test.show))
    return tuple(sorted(found))


def _sampled(test: Litmus, seed: int) -> str:
    """The outcome of one order, drawn."""
    rng, machine = random.Random(seed), _machine(test)
    while machine.events and not machine.trapped:
        machine.step(rng.choice(machine.events))
    return machine.outcome(test.show)


def judge(name: str, test: Litmus) -> _Verdict:
    """Run `test` with all rules, and without each rule that it names."""
    got = _outcomes(test)
    faults = [f"found {outcome or 'no value'}, expected one of {', '.join(test.allowed) or '-'}" for outcome in got if outcome not in test.allowed]
    faults += [f"no order gives {outcome}" for outcome in test.allowed if outcome not in got]
    reached = {rule: tuple(o for o in _outcomes(test, rule) if o not in got) for rule in test.without}
    for rule, forbidden in test.without.items():
        faults += [f"{outcome} needs no deleted rule" for outcome in forbidden if outcome in got]
        faults += [f"{outcome} stays out of reach without {rule}" for outcome in forbidden if outcome not in (*got, *reached[rule])]
    return _Verdict(name, got, reached, tuple(faults))


def load_litmus(source: str | Path) -> Litmus:
    """A TOML file, else the packaged test of this name. Raises ConfigError for an unknown key, instruction, block or GPU."""
    packaged = PACKAGED / Path(source).with_suffix(".toml").name
    path = packaged if packaged.is_file() and not Path(source).is_file() else Path(source)
    return _litmus_of(parse_toml(read_text(path), str(path)), str(path))


def _litmus_of(table: ByName, path: str) -> Litmus:
    """The test of a table of TOML. Raises ConfigError as `load_litmus`."""
    table = {"without": {}, "show": [], "init": [], "planes": 1, "isa": DYSHARP} | table
    raise_if(problems(Litmus, table) or ["threads: found none, expected one for each GPU"] * (not table["threads"]), path)
    check_word(table["isa"], (DYSHARP, *ISAS), f"{path}: isa: found {table['isa']!r}")
    test = Litmus(**{key: _frozen(value) for key, value in table.items()})
    for rule in test.without:
        check_word(rule, test.rules, f"{path}: without.{rule}: unknown rule")
    shape, begin = (INSTRUCTION, BLOCK) if test.isa == DYSHARP else (ABSTRACT[test.isa], BEGIN)
    expected = "one of st x 1 @0, ld x @0 -> r, fence, done, notify 0 x, wait x" if test.isa == DYSHARP else f"an instruction of {test.isa}"
    lines = [(shape, text, expected) for thread in test.threads for text in thread]
    lines += [(BLOCK, text, "a block such as x@0") for text in test.show] + [(begin, text, "a block such as x@0") for text in test.init]
    for pattern, text, wanted in lines:
        if not pattern.fullmatch(text) or any(int(gpu) >= len(test.threads) for gpu in NAMED.findall(text)):
            raise ConfigError(f"{path}: found {text[:60]!r}, expected {wanted}, on GPUs 0 to {len(test.threads) - 1}")
    loads = [text.split("-> ")[1] for thread in test.threads for text in thread if "->" in text]
    if twice := [name for name in loads if loads.count(name) > 1]:
        raise ConfigError(f"{path}: found {loads.count(twice[0])} loads into {twice[0]}, expected a register for each load")
    return test


def log_of(test: Litmus, seed: int) -> str:
    """The operations of one drawn order as JSON lines (docs/memory-model.md)."""
    values = _values(outcome := _sampled(test, seed))
    lines: Rows = [{"isa": test.isa, "gpus": len(test.threads), "planes": test.planes, "init": test.init, "show": test.show}]
    ops = [(gpu, op, op.partition("-> ")[2]) for gpu, thread in enumerate(test.threads) for op in thread]
    lines += [{"gpu": gpu, "op": op, **({"value": values[name]} if name in values else {})} for gpu, op, name in ops]
    lines += [{"block": shown, "value": values[shown]} for shown in test.show if values] + [{"ended": outcome}] * (outcome in (TRAP, HANGS))
    return "".join(json.dumps(line) + "\n" for line in lines)


def _values(outcome: str) -> dict[str, int | None]:
    """{register or block: its value}; None: nobody wrote it. Empty for `TRAP` and `HANGS`."""
    return {name: None if value == "?" else int(value) for name, _, value in (word.partition("=") for word in outcome.split()) if value}


def check_log(path: str | Path) -> _Verdict:
    """What the program of a log may reach, and a fault where the log says something else. Values that it leaves out may be any."""
    head, *lines = [json_of(line, f"{path}: line {n}") for n, line in enumerate(read_text(Path(path)).splitlines(), 1) if line.strip()] or [{}]
    try:
        threads = [[line["op"] for line in lines if line.get("gpu") == gpu] for gpu in range(min(head["gpus"], MOST_GPUS))]
        ended = next((str(line["ended"]) for line in lines if "ended" in line), "")
        shown = dict.fromkeys([*head.get("show", ()), *(line["block"] for line in lines if "op" not in line and "ended" not in line)])
        said = {line.get("block") or line["op"].split("-> ")[1]: line["value"] for line in lines if "value" in line or "block" in line}
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ConfigError(f"{path}: found other lines, expected gpus in the first line, then gpu and op, block and value, or ended") from None
    if (lost := sum("op" in line for line in lines) - sum(map(len, threads))) > 0:
        raise ConfigError(f"{path}: found {lost} operations of other GPUs, expected 0 to {len(threads) - 1} as the first line says")
    if ended and (said or ended not in (TRAP, HANGS)):
        raise ConfigError(f"{path}: found ended {ended!r} and {len(said)} values, expected trap or hangs, and no values: those are not checked")
    more = {key: head[key] for key in ("isa", "planes", "init") if key in head} | {"show": [*shown]}
    possible = _outcomes(_litmus_of({"about": "", "threads": threads, "allowed": [], **more}, str(path)))
    found = ended or " ".join(f"{name}={'?' if value is None else value}" for name, value in said.items())
    good = ended in possible if ended else any(one not in (TRAP, HANGS) and said.items() <= _values(one).items() for one in possible)
    faults = (f"found {found}, expected one of {', '.join(possible)}",) * (not good)
    return _Verdict(f"{found} is {'' if good else 'not '}allowed", possible, {}, faults)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {name: _frozen(one) for name, one in value.items()} if isinstance(value, dict) else value
