"""Where jobs and runs are kept. Each module or package here is one adapter of `ports.Store`; none imports another."""
