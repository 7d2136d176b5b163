"""Other schedulers doing the same work, each a script of its own that runs in an environment of its own (they need
drivers and versions that Horarium does not). Each prints one line of JSON: {"add": runs/s, "run": runs/s}."""
