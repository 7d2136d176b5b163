"""Long polls: workers that wait for runs, and pages that wait for news."""
