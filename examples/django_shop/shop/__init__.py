"""A shop: Django and PostgreSQL, with Horarium in the same database."""
