"""One running node: which adapters a URL names, which services run, in which order they start and stop."""
