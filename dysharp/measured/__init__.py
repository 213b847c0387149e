"""Predictions against measurements: families, validation, fits and error bars. See README.md in this folder."""
