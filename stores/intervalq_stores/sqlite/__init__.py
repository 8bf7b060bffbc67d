"""`sqlite://`: one database file, the embedded default."""
