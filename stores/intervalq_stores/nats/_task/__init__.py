"""Tasks as messages of a work-queue stream."""
