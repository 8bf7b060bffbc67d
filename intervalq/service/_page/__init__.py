"""The page of a service, and what its buttons do."""
