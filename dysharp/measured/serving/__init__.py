"""Serving runs of engines: rows, what they serve, predictions and errors."""
