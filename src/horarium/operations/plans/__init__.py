"""A change of definitions, seen before it is made: planned, and applied as a whole."""
