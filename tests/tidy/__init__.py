"""What we would otherwise have to remember: sizes, dead code, layers, words."""
