"""The common parts of stores in files."""
