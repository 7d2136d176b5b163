"""The edge for machines: the server's process, its settings, its log."""
