"""The REST API: HTTP in, operations called, JSON out. Decides nothing that `operations` should decide."""
