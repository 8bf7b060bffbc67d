"""What those who look at a store see: `status`, `top`, and the page of a service."""
