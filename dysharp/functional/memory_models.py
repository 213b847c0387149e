"""Memory models of ISAs that have no functional machine here: the parts of each instruction, and the order that rules give them.

A part is what nobody sees half done. Parts happen in any order that the rules of the ISA leave, and loads see what is there. What a source leaves
open has no rule, so all orders are allowed. Rules and sources: isas.toml.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dysharp.base import Numbers, read_toml
from dysharp.functional.orders import Event

ISAS: Mapping[str, Mapping[str, str]] = read_toml(Path(__file__).with_name("isas.toml"))
"""{ISA: {rule: what it says}}."""
_UNITS = r"[xyzw]+([+][xyzw]+)* \d{1,2} @\d+(,\d+)*"
_OF_ALL = rf"(st|red) {_UNITS}|ld [xyzw] @\d+(,\d+)* -> \w+|wait [xyzw]( \d{{1,2}})?|done"
_OWN = {
    "multimem": rf"rel {_UNITS}|ldu [xyzw] @\d+ -> \w+|fence[.]alias",
    "ascend": r"poll [xyzw] -> \w+",
    "moe-hub": r"ready \d{1,2}",
    "cais": rf"redc {_UNITS}|ldc [xyzw] @\d+ -> \w+|sync",
}
INSTRUCTION = {isa: re.compile(f"{_OF_ALL}|{own}") for isa, own in _OWN.items()}
"""{ISA: its instructions}. `xy`: one unit that may be whole, `x+y`: two units of one write. `red`, and `rel` that releases, add. `ldu`: by the
unicast alias. `ldc`, `redc`: merged in the switch. `poll`: until it is not `SENTINEL`. `ready`: until so many writes have been acknowledged here.
`sync`: registers its group."""
BEHIND = ("sync", "done", "fence.alias")
"""Wait for all own instructions before them."""
BLOCKING, STORES = ("wait", "poll", "ready", *BEHIND), ("st", "rel", "red", "redc")
SENTINEL, COUNTED = 9, "count"
TRAP, HANGS = "trap", "hangs"
PART = -1
"""Kind of an event: one way in which a part happens."""
State = dict[tuple[Any, ...], Any]


class _Part(NamedTuple):
    """`op` at `gpu`. `digits`: of `value`, that a store changes in its blocks; a load of one block fills `register`."""

    thread: int
    at: int
    op: str
    gpu: int
    blocks: str
    value: int
    digits: Numbers = (10, 1)
    register: str = ""


def _parts(isa: str, rules: Collection[str], thread: int, at: int, words: list[str]) -> Iterator[_Part]:
    """Of one instruction."""
    op, places = words[0], next(([int(gpu) for gpu in word[1:].split(",")] for word in words if word[0] == "@"), [thread])
    value = int(next((word for word in words[1:] if word.isdigit()), 1))
    if op not in STORES:
        blocks, register = words[1] if words[1:2] and words[1].isalpha() else "", words[-1] if "->" in words else ""
        yield from (_Part(thread, at, op, gpu, blocks, value, register=register) for gpu in places)
        return
    torn = "whole" in ISAS[isa] and "whole" not in rules
    for unit, gpu in itertools.product(words[1].split("+"), places):
        pieces = [(block, (digit,)) for block in unit for digit in (10, 1)] if torn else [(unit, (10, 1))]
        yield from (_Part(thread, at, op, gpu, blocks, value, digits) for blocks, digits in pieces)
        if isa == "moe-hub":
            yield _Part(thread, at, COUNTED, gpu, unit, 1)


class AbstractMachine:
    """A program under way, of `threads` by GPU. `rules` hold. `begin`: memory that does not hold 0, by (GPU, block).

    `state`: memory, what was there before ("old"), registers, counters, and entries of switches.
    """

    def __init__(self, isa: str, threads: Sequence[Sequence[str]], rules: Collection[str], begin: Mapping[tuple[int, str], int]) -> None:
        texts = ((gpu, at, text.split()) for gpu, thread in enumerate(threads) for at, text in enumerate(thread))
        self.parts = [part for gpu, at, words in texts for part in _parts(isa, rules, gpu, at, words)]
        self.gpus, self.rules, self.trapped = len(threads), rules, False
        self.state: State = {("memory", *place): value for place, value in begin.items()}
        self.left = frozenset(range(len(self.parts)))

    @property
    def events(self) -> list[Event]:
        """What may happen next. At any time a switch may evict a sum."""
        may = [i for i in sorted(self.left) if not any(self._behind(self.parts[i], self.parts[one]) for one in self.left)]
        return [(PART, (i, n)) for i in may for n in range(len(self._ways(i)))] + [(PART, key) for key in self.state if key[0] == "redc"]

    def step(self, event: Event) -> None:
        """`event` happens."""
        i, n, *block = event[1]
        if block:
            self.state = _home(self.state, event[1], whole="partial" in self.rules)
        else:
            self.trapped = "reserved" in self.rules and self.parts[i].op in STORES and self.parts[i].value == SENTINEL
            self.state, self.left = self._ways(i)[n], self.left - {i}

    def outcome(self, show: Sequence[str]) -> str:
        """Registers and shown blocks, in words."""
        if self.trapped or self.left:
            return TRAP if self.trapped else HANGS
        values = {key[1]: value for key, value in sorted(self.state.items(), key=str) if key[0] == "register"}
        values |= {word: self.state.get(("memory", int(word[2:]), word[0]), 0) for word in show}
        return " ".join(f"{name}={value}" for name, value in values.items())

    def _behind(self, part: _Part, one: _Part) -> bool:
        """Whether `part` must come behind `one`, which has not happened."""
        if one.thread != part.thread or one.at > part.at or one is part:
            return False
        same = one.gpu == part.gpu and bool(set(one.blocks) & set(part.blocks))
        if one.at == part.at:
            return "visible" in self.rules and part.op == COUNTED != one.op and same
        released = part.op == "rel" and one.op in STORES and "release" in self.rules
        return one.op in BLOCKING or part.op in BEHIND or released or (same and "location" in self.rules)

    def _ways(self, i: int) -> list[State]:
        """The states that a part may leave; none while it has to wait."""
        part, state = self.parts[i], self.state
        seen, old = (state.get((what, part.gpu, part.blocks), none) for what, none in (("memory", 0), ("old", ())))
        kept, n = state.get(key := (part.op, part.gpu, part.blocks), (seen * (part.op == "ldc"), 0))
        if part.op == "redc":
            more = {**state, key: (kept + part.value, n + 1)}
            return [_home(more, key) if n + 2 == self.gpus else more]
        if part.op == "ldc":  # an entry may have been dropped
            ways = [{**_read(state, part, value), key: (value, times)} for value, times in sorted({(seen, 1), (kept, n + 1)})]
            return [_without(one, key) if one[key][1] + 1 == self.gpus and "freed" in self.rules else one for one in ways]
        if part.op == COUNTED:
            return [{**state, (COUNTED, part.gpu): state.get((COUNTED, part.gpu), 0) + 1}]
        if part.op in STORES:
            return [self._stored(part)]
        if part.op == "fence.alias" and "alias" in self.rules:
            return [{key: value for key, value in state.items() if key[:2] != ("old", part.gpu)}]
        return [_read(state, part, value) for value in sorted({seen, *(old if part.op == "ldu" else ())}) if self._ready(part, seen)]

    def _stored(self, part: _Part) -> State:
        state = self.state
        for block in part.blocks:
            old = 0 if part.op in ("red", "rel") else state.get(("memory", part.gpu, block), 0)
            new = sum((part.value if digit in part.digits else old) // digit % 10 * digit for digit in (10, 1))
            state = _added(state, part.gpu, block, new - old)
        return state

    def _ready(self, part: _Part, seen: int) -> bool:
        """Whether a GPU that waits may go on."""
        if part.op == "ready":
            return bool(self.state.get((COUNTED, part.gpu), 0) >= (part.value if "count" in self.rules else 1))
        if part.op == "sync" and "together" in self.rules:
            mine = [[i for i, one in enumerate(self.parts) if (one.op, one.thread) == ("sync", gpu)] for gpu in range(self.gpus)]
            same = [own[k] for k in [mine[part.thread].index(self.parts.index(part))] for own in mine if len(own) > k]
            return not any(self._behind(self.parts[i], self.parts[one]) for i in self.left.intersection(same) for one in self.left)
        return {"poll": seen != SENTINEL, "wait": seen == part.value}.get(part.op, True)


def _added(state: State, gpu: int, block: str, more: int) -> State:
    old = state.get(("memory", gpu, block), 0)
    return {**state, ("memory", gpu, block): old + more, ("old", gpu, block): state.get(("old", gpu, block), frozenset()) | {old}}


def _home(state: State, key: tuple[Any, ...], *, whole: bool = True) -> State:
    """A sum leaves the switch."""
    return _without(_added(state, key[1], key[2], state[key][0] * whole), key)


def _read(state: State, part: _Part, value: int) -> State:
    return {**state, (key := ("register", part.register)): state.get(key, 0) + value} if part.register else state


def _without(state: State, key: tuple[Any, ...]) -> State:
    return {name: value for name, value in state.items() if name != key}
