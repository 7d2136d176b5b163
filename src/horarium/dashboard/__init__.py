"""The dashboard: pages for people, rendered here, over the same operations and roles as the API."""
