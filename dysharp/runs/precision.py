"""The precision of a verb that trains or simulates one layer: what `--precision` changes in a model, a training recipe and the options of systems."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import cast

from dysharp.base import AnyMapping, ConfigError
from dysharp.costs import Machine
from dysharp.model import EVERY, FORMATS, Formats, formats_of, trained
from dysharp.model.formats import WEIGHTS
from dysharp.runs.options import Value
from dysharp.specs import Model, WholeModel
from dysharp.systems import get_system
from dysharp.training import DType, TrainingRecipe

SIMULATED = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "fp8"}
"""Type of products -> type of the GEMMs of a simulated layer (`Model.gemm_dtype`)."""
ROWS = {"bf16": "rows"}
"""Rows -> their name among the options of systems, where it differs (`systems.building.formats.ROW_FORMATS`)."""
WORDS = {word: name for name, word in ROWS.items()}


def step_formats(precision: str | None, model: WholeModel, machine: Machine | None = None) -> Formats:
    """The formats of a step; where nobody said any, the experts of the model say the type of products. Raises `ConfigError`.

    A `machine` that multiplies in BF16 alone makes no narrower copies.
    """
    formats = trained(formats_of(precision or (model.layer.gemm_dtype if model.layer else "bf16"), model=model))
    wide = machine is not None and machine.products(formats.main(model.layer is not None)) == "bf16"
    return replace(formats, products="bf16", **dict.fromkeys(WEIGHTS, "bf16")) if wide else formats


def in_formats(model: WholeModel, training_recipe: TrainingRecipe, formats: Formats, machine: Machine) -> tuple[WholeModel, TrainingRecipe]:
    """A model whose simulated layers multiply as `formats` say, and the training recipe of a step. Products are those that the machine has."""
    products = machine.products(formats.main(model.layer is not None))
    layer = None if model.layer is None else replace(model.layer, gemm_dtype=SIMULATED.get(products, "fp8"), checkpoint="")
    return replace(model, layer=layer), replace(training_recipe, dtype=cast(DType, products), formats=formats)


def layer_in(model: Model, formats: Formats, machine: Machine) -> Model:
    """A layer that is simulated in `formats`. Raises `ConfigError` for what a simulated layer has not."""
    products = machine.products(formats.main(moe=True))
    if products not in SIMULATED:
        raise ConfigError(f"precision: found products in {products}, expected bf16, fp8 or mxfp8: simulated layers have no other GEMMs")
    narrow = FORMATS[formats.experts].weight_bytes < 1
    return replace(model, gemm_dtype=SIMULATED[products], checkpoint=formats.experts if narrow else "")


def row_options(formats: Formats | None, systems: Iterable[str]) -> dict[str, Value]:
    """Options of systems that send rows in the formats that somebody said. Raises `ConfigError` for a system without a choice."""
    found: dict[str, Value] = {}
    for side, option in (("sent", "dispatch"), ("back", "combine")):
        word = getattr(formats, side) if formats else ""
        for name in systems if word else ():
            if option in {field.name for field in fields(get_system(name).options)}:
                found[f"{name}.{option}"] = ROWS.get(word, word)
            elif word != "bf16":
                raise ConfigError(f"precision: found {side}={word}, expected {side}=bf16: {name} has no other rows")
    return found


def default_formats(products: str, state: str = "") -> Formats:
    """Formats where nobody said any: those of the precision that is named like its products, for every linear; BF16 rows."""
    own = formats_of(EVERY.get(products, products))
    return replace(own, state=state or own.state, sent="bf16", back="bf16")


def with_rows(formats: Formats, options: AnyMapping | None, model: Model | None) -> Formats:
    """`formats` with the rows that a system sent under `options`; without a system, what closed forms send: BF16 both ways."""
    said = options or {}
    sent, back = (WORDS.get(word, word) for word in (str(said.get("dispatch", "rows")), str(said.get("combine", "rows"))))
    return formats if model is None else replace(formats, sent=_known(sent), back=_known(back))


def _known(word: str) -> str:
    """A word of `formats.ROW_BYTES`: the same rows without scales count as those with."""
    return {"fp8-plain": "fp8", "fp8-ue8m0": "fp8", "fp4-plain": "nvfp4"}.get(word, word)
