"""Follow-up runs, notifications, and the conditions behind them: late, overdue, unserved, lost."""
