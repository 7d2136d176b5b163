"""Proof by real faults: real processes, real signals, and a ledger that is checked afterwards."""
