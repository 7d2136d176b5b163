"""One module for each page: what it asks for, and what it shows."""
