"""From one store to another."""
