"""`file://`: everything in one JSON file."""
