"""Triggers: pure rules that yield fire times."""
