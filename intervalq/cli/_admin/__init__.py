"""Commands that look at queues and change them."""
