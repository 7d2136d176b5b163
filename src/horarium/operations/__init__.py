"""What people and programs ask for: each operation reads, lets a rule decide, and writes if nothing has changed."""
