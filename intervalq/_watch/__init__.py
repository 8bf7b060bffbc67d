"""What a store has now, for those who look at it: `status`, `top` and the page of a service."""
