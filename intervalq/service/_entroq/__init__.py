"""EntroQ's protocol, so that its published clients work with any store of tasks."""
