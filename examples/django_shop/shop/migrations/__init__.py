"""Of the data."""
