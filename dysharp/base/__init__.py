"""What every room uses: errors, units, values, arrays, files, text, processes. See README.md in this folder. Names of NumPy's and of files load when
first used."""

from typing import TYPE_CHECKING

from dysharp.base.errors import ConfigError, DysharpError, EmulationMismatch, ProgramError, SimulationError, check_word, entry_of, nearest, show
from dysharp.base.lazy import import_all, late_names, loader
from dysharp.base.units import PS_PER_US, GiB, KiB, MiB, ns_to_ps, ps_to_us, us_to_ps
from dysharp.base.values import Amounts, AnyMapping, AnyPath, ByName, Cells, Numbers, Tally, Texts, by_key, frozen, frozen_keywords, named
from dysharp.base.version import MODEL_VERSION

if TYPE_CHECKING:
    from dysharp.base.arrays import F64, I32, I64, Array, Bools, Floats, Ints, Reals, f64
    from dysharp.base.columns import KEPT, SHOWN, Column, Columns, Rows
    from dysharp.base.errors import IsaError, MissingExtra, OverShare, one_line
    from dysharp.base.files import cache_folder, check_destination, make_folder, write_file, write_text
    from dysharp.base.processes import Ended, Processes, Runner, Task, here, in_processes, physical_bytes
    from dysharp.base.reading import decode_utf8, json_of, open_regular, parse_json, parse_toml, parse_yaml, read_bytes, read_text, read_toml
    from dysharp.base.sources import code_digest, sources_changed
    from dysharp.base.text import csv_text, facts, sentences
    from dysharp.base.values import OnProgress, older_name, plain

__getattr__ = loader(__name__)
