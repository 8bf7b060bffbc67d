"""`intervalq report`: a page about the starts in a log."""
