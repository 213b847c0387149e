"""Serving: a step of prompts and decoding requests as a sum of kernels, and the loops that put requests into steps. See README.md in this folder."""
