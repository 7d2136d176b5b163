"""The rules: values in, values out. Nothing here reads a clock, waits, or knows a store."""
