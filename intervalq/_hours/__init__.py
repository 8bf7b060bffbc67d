"""Parts of the day, and time zones: when something may happen."""
