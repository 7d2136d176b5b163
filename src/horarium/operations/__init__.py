"""The requests of people and programs: each operation reads, lets a rule decide, and writes if nothing has changed."""
