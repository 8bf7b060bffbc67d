"""One scan of a log by arrays: rows, order and keys are judged in Python workers."""
