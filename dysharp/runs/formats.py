"""Settings of a system as words."""

from dysharp.base import AnyMapping
from dysharp.specs import Model
from dysharp.systems.building.formats import ROW_FORMATS, SIDES, WEIGHT_FORMATS, format_of

KNOB = "n_sm"
"""The option with the number of SMs of communication kernels."""


def formats_of(system: str, options: AnyMapping, model: Model) -> str:
    """Formats of transfers and weights, and SMs of communication, which a paper form has not: "Dispatch FP8, Combine BF16, 20 SMs".

    Raises ConfigError for a value of `sides`, `dispatch`, `combine` or `weights` that `systems.building.formats` does not have.
    """
    own = {1: "FP8", 2: "BF16", 4: "FP32"}.get(model.element_bytes, f"{model.element_bytes} B per value")
    weights = weights_of(system, options)
    parts = [format_of(f"{system}.sides", options["sides"], SIDES)] if "sides" in options else []
    for name in ("dispatch", "combine"):
        printed = format_of(f"{system}.{name}", options.get(name, "rows"), ROW_FORMATS).printed
        parts.append(f"{name.capitalize()} {printed or own}")
    sums = format_of(f"{system}.sums", options.get("sums", "rows"), ROW_FORMATS).printed
    parts += [f"sums {sums}"] * bool(sums) + [f"weights {weights}"] * bool(weights)
    return ", ".join([*parts, *([f"{options[KNOB]} SMs"] if KNOB in options and options.get("form") != "paper" else [])])


def rows_sent(formats: str) -> str:
    """Formats of rows out and back, of a text of `formats_of`: "FP8 / BF16"."""
    sent = dict(part.split(" ", 1) for part in formats.split(", ") if part.startswith(("Dispatch ", "Combine ")))
    return f"{sent['Dispatch']} / {sent['Combine']}"


def weights_of(system: str, options: AnyMapping) -> str:
    """The printed format of the weights; "" = the type of the model's GEMMs."""
    return format_of(f"{system}.weights", options.get("weights", "model"), WEIGHT_FORMATS).printed
