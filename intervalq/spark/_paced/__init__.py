"""A function called for each row, at its pace."""
