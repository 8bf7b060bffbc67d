"""`intervalq top` on a terminal with a keyboard."""
