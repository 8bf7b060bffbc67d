"""The handle that users work with."""
