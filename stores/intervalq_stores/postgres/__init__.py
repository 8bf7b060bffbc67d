"""`postgresql://`: rows of a schema, and the rules beside them."""
