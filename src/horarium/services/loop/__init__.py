"""The loop that runs every service, the node's sign of life, its warnings, and its watch of the wall clock."""
