"""Real servers for tests: each on a free port of the loopback, in a temporary folder, stopped at the end.

A server that can't be started is a failure, never a skip.
"""
