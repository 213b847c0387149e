"""A layout as arguments of training frameworks, to paste: Megatron-LM, Megatron-Bridge, MindSpeed. Their options are data (`arguments.toml`)."""

from collections.abc import Iterator
from pathlib import Path

from dysharp.base import ByName, Cells, read_toml
from dysharp.planning.cost import Costed
from dysharp.planning.space import Task

RULES: ByName = read_toml(Path(__file__).with_suffix(".toml"))
NOT_SAID: Cells = RULES["not_said"]
"""What a framework's options leave out."""
FRAMEWORKS = tuple(NOT_SAID)


def _facts(one: Costed) -> set[str]:
    """Words that hold for a layout: degrees above 1, and the choices of a plan."""
    values = one.values
    chosen = {name for name in ("recompute", "offload") if values[name]} | {values[name] for name in ("system", "overlap", "schedule")}
    return chosen | {*values["recompute"]} | {name for name in ("tp", "pp", "vpp", "cp", "fsdp") if getattr(one.layout, name) > 1}


def _facts_of(task: Task, one: Costed) -> set[str]:
    """Those of a layout, and of its model and formats."""
    at, moe, formats = one.layout, task.model.layer is not None, task.training_recipe.formats
    extends = moe and at.tp > 1 and at.etp == 1 and at.ep % at.tp == 0  # MindSpeed: whole experts lie on tensor ranks
    more = {"with experts": moe, "mtp": task.model.mtp, "extends": extends, "types": formats, "overlap_tp": task.training_recipe.overlap_tp}
    state = {formats.state, formats.state.rpartition("-")[2]} if formats else set()
    return _facts(one) | state | {name for name, holds in more.items() if holds}


def _held(kind: str, facts: set[str]) -> Iterator[ByName]:
    """The rules of a kind all of whose facts hold."""
    for rule in RULES[kind]:
        if all(any(word in facts for word in fact.split(" or ")) if fact[:4] != "not " else fact[4:] not in facts for fact in rule.get("when", ())):
            yield rule


def environment_of(framework: str, one: Costed) -> Cells:
    """{NAME=value: why}: variables that a framework asserts for a layout."""
    return {rule["says"]: rule["why"] for rule in _held("environment", _facts(one))} if framework.startswith("megatron") else {}


def lines_of(framework: str, task: Task, one: Costed) -> list[str]:
    """A layout for `framework`, one of `FRAMEWORKS`: options of `pretrain_gpt.py`, lines that set the fields of a recipe's `cfg`, or options."""
    at, formats, again, offload = one.layout, task.training_recipe.formats, list(one.values["recompute"]), list(one.values["offload"])
    weights = (formats.experts if task.model.layer else formats.dense) if formats else ""
    told = [rule[framework] for rule in _held("option", _facts_of(task, one)) if framework in rule]
    text = "\n".join(told).format(
        at=at, task=task, groups=at.ep // at.tp, fp8=RULES["fp8"].get(weights, ""), mixed=RULES["mixed"].get(weights, "bf16_mixed"),
        again=again, again_words=" ".join(again), offload=offload, offload_words=" ".join(offload),
    )  # fmt: skip
    return [line for line in text.split("\n") if line]
