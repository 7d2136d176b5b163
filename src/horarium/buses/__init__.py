"""Message brokers: each module holds one adapter of `ports.Bus`. None of them knows what an action or a report says."""
