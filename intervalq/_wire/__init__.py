"""intervalq.v1: what a service and the stores that reach it (`intervalq://`) say to each other."""
