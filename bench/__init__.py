"""Benchmarks. Each prints its figures beside the raw driver's, taken in turns in the same run: machines change speed
from minute to minute, so only ratios mean anything. `python -m bench` runs them all; `--quick` makes each short."""
