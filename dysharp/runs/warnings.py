"""Warnings of several predictions as few lines."""

import re
from collections.abc import Container, Iterable, Mapping


def grouped(warnings: Mapping[str, Iterable[str]], known: Container[str] = ()) -> list[str]:
    """Each warning once, after the names that it is about: "deepep, nccl: text". `warnings`: {name: its warnings}.

    A warning may begin with a name of its own ("deepep-dispatch: ..."). A warning of all names has no names before it.
    """
    names: dict[str, dict[str, None]] = {}
    for name, texts in warnings.items():
        for text in texts:
            if text not in known:
                who, colon, rest = text.partition(": ")
                own = bool(colon) and bool(re.fullmatch(r"[a-z0-9-]+", who)) and who != "memory"
                names.setdefault(rest if own else text, {})[who if own else name] = None
    every = list(warnings)
    return [_line(text, list(who), every) for text, who in names.items()]


def _line(text: str, who: list[str], every: list[str]) -> str:
    if len(every) > 1 and who == every:
        return text
    return text if len(who) == 1 and text.startswith(f"{who[0]} ") else f"{', '.join(who)}: {text}"
