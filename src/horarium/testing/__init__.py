"""What is shipped for tests: clocks, faults, contracts, and the simulator."""
