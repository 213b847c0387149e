"""Measurements from a CSV, the packaged one or a file: one line per number, the columns of `COLUMNS`; and what families read from a line.

The reader is strict: a value that is silently misread would look like an error of the model. Readers of numbers, data types, labels and the
machine raise `Unsupported` with the reason.
"""

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path

from dysharp.base import AnyMapping, AnyPath, ByName, ConfigError, Tally, Texts, check_word, frozen, parse_json, read_toml, show
from dysharp.measured import tp_rows
from dysharp.measured.data import read_table
from dysharp.measured.formats import rows_text
from dysharp.specs import list_clusters, list_gpus, load_cluster

PACKAGED = "packaged measurements"
"""The name of the packaged table in errors."""
COLUMNS = ("id", "kind", "system", "hardware", "config_json", "metric", "value", "unit", "source")
STATEMENT = "-"
"""The unit of a measurement that states a fact; only there may `value` be a text."""
TABLES = read_toml(Path(__file__).with_name("tables.toml"))
UNITS_OF: Mapping[str, Texts] = {word: tuple(units) for word, units in TABLES["units"].items()}
"""Units of the metrics that are predicted, by the first word of the metric (`latency_p50` counts as `latency`)."""
TIMES = UNITS_OF["latency"]
US_PER_MS = 1e3
NO_WORD = ("true", "false", "nan", "null", "none")
"""What programs print in place of a word."""
TEXTS = ("id", "kind", "system", "hardware", "metric", "unit", "source")


@frozen
class Measurement:
    """One line of the CSV: one number that somebody measured."""

    id: str
    kind: str
    system: str
    hardware: str
    config: AnyMapping
    metric: str
    value: float | None
    """None: a statement (unit `STATEMENT`) that is no number."""
    unit: str
    source: str

    @property
    def us_per_unit(self) -> float:
        """Microseconds in one unit of a time."""
        return US_PER_MS if self.unit == "ms" else 1.0

    def says(self, where: Mapping[str, str]) -> bool:
        """Whether all patterns, by column or by key of `config`, are found in their texts."""
        texts = {name: str(getattr(self, name, None) or self.config.get(name, "")) for name in where}
        return all(re.search(pattern, texts[name]) for name, pattern in where.items())


class Unsupported(Exception):
    """A measurement without a prediction; the text is the reason."""


def read_measurements(path: AnyPath | None = None) -> list[Measurement]:
    """All measurements of a CSV file; None: of the packaged table.

    Raises `ConfigError` in one line: file, row, column, found and expected.
    """
    if path is None:
        return measurements_from_csv(read_table("measurements"), PACKAGED)
    return measurements_from_csv(rows_text(path), str(path))


def read_operators() -> list[Measurement]:
    """The packaged measurements of operators, which families beyond the bars judge."""
    return measurements_from_csv(read_table("operators"), "packaged operators")


def read_calls() -> list[Measurement]:
    """The packaged calls of libraries, host included, which families beyond the bars judge."""
    return measurements_from_csv(read_table("calls"), "packaged calls of libraries")


def measurements_from_csv(text: str, where: str) -> list[Measurement]:
    """Measurements from CSV text; `where` names the file in errors, which count rows from 1 without the header."""
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{where}: malformed CSV: {error}") from None
    if not records:
        raise ConfigError(f"{where}: found an empty file, expected the header {','.join(COLUMNS)}")
    tensor_parallel = tuple(records[0]) == tp_rows.COLUMNS
    if not tensor_parallel:
        _check_header(records[0], where)
    place = {name: records[0].index(name) for name in records[0]}
    measurements: list[Measurement] = []
    first_row: Tally = {}
    for number, record in enumerate(records[1:], start=1):
        row = f"{where}: row {number}"
        if len(record) != len(records[0]):
            raise ConfigError(f"{row}: found {len(record)} columns, expected {len(records[0])}")
        cells = {name: record[i] for name, i in place.items()}
        m = _measurement(tp_rows.cells_of(cells) if tensor_parallel else cells, row)
        if m.id in first_row:
            again = f"expected each id once (first in row {first_row[m.id]})"
            raise ConfigError(f"{row}: column id: found {show(m.id)} again, {again}")
        first_row[m.id] = number
        measurements.append(m)
    return measurements


def _check_header(header: list[str], where: str) -> None:
    for name in header:
        check_word(name, COLUMNS, f"{where}: header: found unknown column {show(name)}")
    for name in COLUMNS:
        if header.count(name) != 1:
            count = f"found column {name} {header.count(name)} times"
            raise ConfigError(f"{where}: header: {count}, expected each of {','.join(COLUMNS)} once")


def _measurement(cells: Mapping[str, str], row: str) -> Measurement:
    for name in TEXTS:
        if not cells[name].strip() and name != "source":
            raise ConfigError(f"{row}: column {name}: found nothing, expected a text")
    if not cells["metric"].strip()[0].isalpha() or cells["metric"].strip().lower() in NO_WORD:
        raise ConfigError(f"{row}: column metric: found {show(cells['metric'])}, expected a metric such as {', '.join(UNITS_OF)}")
    units = units_of(cells["metric"])
    if units and cells["unit"] not in units:
        unit = f"found {show(cells['unit'])} for metric {show(cells['metric'])}"
        raise ConfigError(f"{row}: column unit: {unit}, expected {' or '.join(units)}")
    value = _number(cells["value"], cells["unit"], row)
    if units and value == 0:
        raise ConfigError(f"{row}: column value: found 0, expected more than 0 {cells['unit']}")
    return Measurement(config=_config(cells["config_json"], row), value=value, **{name: cells[name] for name in TEXTS})


def units_of(metric: str) -> Texts:
    """Units a metric may have; empty for a metric that is not predicted."""
    word = metric.split(" ", maxsplit=1)[0]
    return UNITS_OF.get(word) or UNITS_OF.get(word.split("_", maxsplit=1)[0], ())


def _number(text: str, unit: str, row: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        if unit == STATEMENT and text.strip():
            return None
        raise ConfigError(f"{row}: column value: found {show(text)}, expected a number") from None
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{row}: column value: found {show(text)}, expected a finite number of at least 0")
    return value


def _config(text: str, row: str) -> ByName:
    where = f"{row}: column config_json"
    config = parse_json(text, where, constants=False)
    for key, value in config.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and (not math.isfinite(value) or value < 0):
            raise ConfigError(f"{where}: {show(key)}: found {value}, expected a finite number of at least 0")
    return config


SCALED_FP8, SCALED_FP4 = 1 + 4 / 128, 0.5 * (1 + 1 / 8)
"""Bytes per value of FP8 with an FP32 scale per 128 values, and of NVFP4 with an FP8 scale per 16 values."""
DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "fp8": "fp8", "float8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4",
    "fp4": "fp4",
}  # fmt: skip
"""First word of a data type in `config_json` -> name of the data type in this package. FP16 is as wide as BF16, and as fast."""
LIMITS: Mapping[str, tuple[int, int]] = {key: (low, high) for key, (low, high) in TABLES["limits"].items()}
"""Key of a number in `config_json` -> smallest and largest value that is predicted."""


def number(m: Measurement, key: str) -> float:
    """A number of the configuration. Raises `Unsupported` outside `LIMITS`; a key outside that table has no limits."""
    value = m.config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unsupported(f"no number {key!r} in config_json")
    low, high = LIMITS.get(key, (0, math.inf))
    if not low <= value <= high:
        raise Unsupported(f"{key} {value:g}, expected {low} to {high}")
    return float(value)


def whole(value: float, name: str) -> int:
    """`value` as a whole number of at least 1. `name`: the things counted, for the error."""
    if value != math.floor(value) or value < 1:
        raise Unsupported(f"no whole number of {name}")
    return int(value)


def experts_of(m: Measurement, gpus: float) -> float:
    """Experts of all GPUs."""
    return number(m, "local_experts") * gpus if "local_experts" in m.config else number(m, "experts")


def dtype_of(m: Measurement, *keys: str, expected: Texts, default: str | None = None) -> str:
    """The data type under the first of `keys` that is present, such as "fp8" for "fp8_e4m3+fp32 scale/128"."""
    text = next((m.config[key] for key in keys if m.config.get(key) is not None), default)
    if text is None:
        raise Unsupported(f"no {' or '.join(map(repr, keys))} in config_json, expected {' or '.join(expected)}")
    word = re.match(r"[a-z]+[0-9]+(?![a-z0-9])", str(text).lower())
    dtype = DTYPES.get(word[0], "") if word else ""
    if dtype not in expected:
        raise Unsupported(f"{keys[0]} {str(text)[:40]!r}, expected {' or '.join(expected)}")
    return dtype


def label(m: Measurement, *keys: str) -> str:
    """The values of `keys` as one text; keys that are absent are left out."""
    return " ".join(f"{key}={m.config[key]}" for key in keys if key in m.config)


def is_weak(m: Measurement) -> bool:
    """Whether the collector of a measurement marks it as weak."""
    return str(m.config.get("quality", "")).startswith("WEAK")


GPUS: tuple[tuple[str, str], ...] = tuple(TABLES["gpus"].items())
"""Text in the column `hardware` -> packaged GPU; the first match counts."""
NOT_PACKAGED = ("GH200", "L20")
"""Texts that mean another GPU, although they contain or accompany the name of a packaged GPU."""
OTHER_GPUS = ("Ascend", "L20")
MESH_GPUS, MESH_KERNELS = ("mi300x", "mi308x", "mi325x", "mi350x", "mi355x", "gfx942"), "MoRI"
"""Texts in `hardware`, in small letters, of machines without a switch, and the start of `system` of the kernels that are predicted there."""
SEVERAL_DOMAINS = ("PCIe", "IB", "EFA", "multi-node", "4x8 H800", "+ CX7")
"""Texts in `hardware` of machines with several NVLink domains or without NVLink."""
ONE_NODE = "1x"  # the start of `hardware` of one node, whose NICs carry nothing
NO_GPU = "no packaged GPU of this kind"
NO_SWITCH = "a fabric without a switch: only MoRI's kernels and kernels of one GPU are predicted there"
NO_DOMAIN = "more than one NVLink domain"
RETIRED = "its authors have withdrawn it"
GPUS_PER_NODE = 8  # of machines whose text says "/node"
CLUSTERS: Mapping[str, str] = TABLES["clusters"]
"""Packaged GPU -> the packaged cluster that its Programs are built for."""
NICS_OF = "hw-dgx-h100-x2"
"""The packaged cluster whose NICs all measured machines of several domains have: one ConnectX-7 of 400 Gb/s per GPU."""


def out_of_scope(m: Measurement) -> str:
    """Why measurements of this machine are not predicted; "" for a machine of one NVLink domain, or of one node without a switch.

    A measurement with the key `status` is out of scope, too: its authors have withdrawn it.
    Reads the columns `hardware` and `system` and five keys of `config_json`, and no other part of the measurement.
    """
    if "status" in m.config:
        return RETIRED
    if "refused" in m.config:  # by the tool that printed it
        return str(m.config["refused"])
    if any(text in m.hardware for text in OTHER_GPUS):
        return NO_GPU
    if any(text in m.hardware.lower() for text in MESH_GPUS) and not m.system.startswith(MESH_KERNELS):
        return NO_SWITCH
    return NO_DOMAIN if spans_domains(m) else ""


def spans_domains(m: Measurement) -> bool:
    """Whether a measurement is of several NVLink domains, or of GPUs without NVLink."""
    if "crosses_nodes_by_rdma" in m.config:  # trays of a rack are one domain
        return bool(m.config["crosses_nodes_by_rdma"])
    gpus = m.config.get("ep", GPUS_PER_NODE)
    domains = (
        any(text in m.hardware for text in SEVERAL_DOMAINS) and not m.hardware.startswith(ONE_NODE),
        m.config.get("nodes", 1) != 1,
        m.config.get("link", "NVLink") != "NVLink",
        m.config.get("bottleneck", "NVLink") != "NVLink",
        "/node" in m.hardware and isinstance(gpus, (int, float)) and gpus > GPUS_PER_NODE,
        "pure RDMA" in m.system,
    )
    return any(domains)


def gpu_of(m: Measurement) -> str:
    """The packaged GPU of a measurement. Raises `Unsupported` where there is none."""
    if m.hardware in list_gpus():  # the owner of a cluster named the GPU
        return m.hardware
    name = next((gpu for text, gpu in GPUS if text in m.hardware), "")
    if not name or any(text in m.hardware for text in NOT_PACKAGED):
        raise Unsupported(NO_GPU)
    return name


def check_cluster(gpu: str, gpus: int) -> None:
    """Raise `Unsupported` where no packaged cluster has `gpus` GPUs of this kind."""
    if gpu not in CLUSTERS or gpus > (load_cluster(CLUSTERS[gpu]).max_gpus or 1):
        raise Unsupported(f"no packaged cluster of {gpus} {gpu}")


def nic_GBps(gpu: str) -> float:
    """Rate of the NIC of a GPU in the packaged cluster of two domains. Raises `Unsupported` where there is none."""
    name = f"{CLUSTERS.get(gpu, '').replace('tray', 'nvl72')}-x2"
    if name not in list_clusters() or (net := load_cluster(name).scale_out) is None:
        raise Unsupported(f"no packaged cluster of two domains of {gpu}")
    return net.nic_GBps
