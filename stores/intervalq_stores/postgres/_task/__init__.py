"""The parts of the store of tasks in Postgres."""
