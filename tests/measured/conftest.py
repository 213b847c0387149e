"""Predictions of all packaged measurements, made once."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.family import Classified, classify
from dysharp.measured.left_out import split
from dysharp.measured.measurements import Measurement, read_measurements
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted_values


@pytest.fixture(scope="session")
def packaged_measurements() -> list[Measurement]:
    """The measurements that ship with the package."""
    return read_measurements()


@pytest.fixture(scope="session")
def packaged_predictions(packaged_measurements: list[Measurement]) -> tuple[Classified, np.ndarray]:
    """All that are judged, with their predictions (minutes)."""
    judged, _ = split(classify(packaged_measurements).in_bars(), fitted_values())
    return predict(judged, fitted_values(), jobs=2)
