"""The handle of a queue and what runs through it: slots, jobs, attempts, map, decorators."""
