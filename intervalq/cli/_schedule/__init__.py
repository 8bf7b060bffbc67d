"""`intervalq schedule`: commands on schedules."""
