"""Values and pure rules: no clock, no task, no store."""
