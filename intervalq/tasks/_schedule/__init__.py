"""Durable schedules: each is a row of the tasks' own store, and its step inserts what is due and moves it on."""
