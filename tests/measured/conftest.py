"""Predictions of all shared measurements, made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dysharp.measured.apart import split
from dysharp.measured.classify import Classified, classify
from dysharp.measured.measurements import Measurement, read_measurements
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted_values


@pytest.fixture(scope="session")
def shared_measurements(shared: Path) -> list[Measurement]:
    """The measurements beside the repository."""
    return read_measurements(shared / "data" / "measured.csv")


@pytest.fixture(scope="session")
def shared_predictions(shared_measurements: list[Measurement]) -> tuple[Classified, np.ndarray]:
    """All that are judged, with their predictions (minutes)."""
    judged, _ = split(classify(shared_measurements).in_bars(), fitted_values())
    return predict(judged, fitted_values(), jobs=2)
