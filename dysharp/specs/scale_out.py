"""`ScaleOut`: the network between NVLink domains, as the table `[scale_out]` of a cluster file."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from dysharp import units
from dysharp.errors import ConfigError
from dysharp.specs.fields import Delay, Key, Rate, Small, check_fields, problems, raise_if, show

SlowNics = tuple[tuple[Annotated[int, Field(strict=True, ge=0)], Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]], ...]


LostNics = tuple[Annotated[int, Field(strict=True, ge=0)], ...]
Oversubscription = Annotated[float, Field(strict=True, ge=1, le=1e3, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """NICs of the GPUs and the network between NVLink domains. GB/s are decimal. Raises `ConfigError` for an invalid value.

    GPU g is in domain g // domain_gpus. Every GPU has its own NICs. The NICs with one index in their domains are a rail: they share a leaf switch.
    """

    domain_gpus: Annotated[Small, Key("GPUs of one NVLink domain")]
    nic_GBps: Annotated[Rate, Key("payload that one NIC moves in one direction, GB/s")]
    latency_us: Annotated[Delay, Key("one way of a small put between GPUs of two domains, us")]
    """From the posting of the put until a polling GPU has seen its flag."""
    nics_per_gpu: Annotated[Small, Key("NICs of one GPU")] = 1
    message_us: Annotated[Delay, Key("time that a NIC needs for a message besides its bytes, us; 0: GPUs post messages themselves")] = 0.0
    slow_nics: Annotated[SlowNics, Key("[GPU, part] pairs: the NICs of this GPU reach this part of their rate")] = ()
    lost_nics: Annotated[LostNics, Key("GPUs that have lost one of their NICs; a GPU must keep one")] = ()
    oversubscription: Annotated[
        Oversubscription, Key("rate of a leaf switch to its NICs over its rate to the spine, which rows between rails pass; 1: none")
    ] = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "scale_out")
        if not self.rate:
            raise ConfigError(f"scale_out.nic_GBps: found {self.nic_GBps:g}, expected at least 0.001")

    @property
    def rate(self) -> int:
        """Rate of the NICs of one GPU together, in bytes per microsecond."""
        return units.GBps_to_bytes_per_us(self.nic_GBps * self.nics_per_gpu)

    def rates(self, n_gpus: int) -> tuple[int, ...]:
        """Rates by GPU where a NIC is slow or lost, otherwise ().

        Raises `ConfigError` for a NIC of no GPU, and for a GPU that loses its only NIC.
        """
        parts = [1.0] * n_gpus
        for gpu, part in self.slow_nics:
            parts[_index("slow_nics", gpu, n_gpus)] *= part
        for gpu in self.lost_nics:
            left = self.nics_per_gpu - self.lost_nics.count(gpu)
            if not left:
                reason = "no system sends by the NIC of another GPU"
                raise ConfigError(f"scale_out.lost_nics: found GPU {gpu} without a NIC, expected nics_per_gpu above {self.nics_per_gpu}: {reason}")
            parts[_index("lost_nics", gpu, n_gpus)] *= left / (left + 1)
        return tuple(max(1, round(self.rate * part)) for part in parts) if self.slow_nics or self.lost_nics else ()


def _index(key: str, gpu: int, n_gpus: int) -> int:
    if gpu >= n_gpus:
        raise ConfigError(f"scale_out.{key}: found GPU {gpu}, expected 0 to {n_gpus - 1}")
    return gpu


def _tuples(value: Any) -> Any:
    """Lists of a file as tuples; other values as they are, for the check of the fields."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def scale_out_of(table: Any, where: str) -> ScaleOut:
    """The table `[scale_out]` of the file `where`. Raises `ConfigError`."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: scale_out: found {show(table)}, expected a table")
    values = {**table, **{name: _tuples(table[name]) for name in ("slow_nics", "lost_nics") if name in table}}
    raise_if(problems(ScaleOut, values), f"{where}: scale_out")
    return ScaleOut(**values)
