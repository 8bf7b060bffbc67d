"""Durable schedules: rows of the store of tasks, whose steps insert the tasks that are due."""
