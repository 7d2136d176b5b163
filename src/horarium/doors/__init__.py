"""Doors: edges that speak the protocols of three other schedulers, so that their clients go on to work unchanged.

A door translates and nothing else: what it is asked becomes the same operations that the API asks for, and what it
answers is made from the same jobs and runs. Each is closed unless it is named at the start (`--door NAME`).
"""
