"""Limits on each question: time for rules, pages, and the queues that a caller is bound to."""
