"""Commands that show and change queues."""
