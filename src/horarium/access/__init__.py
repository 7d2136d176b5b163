"""Who may do what: roles, keys, access tokens, and the audit."""
