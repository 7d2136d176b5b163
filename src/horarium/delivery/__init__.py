"""How runs reach those who do the work: one module for each kind of target."""
