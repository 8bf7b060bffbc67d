"""`intervalq://`: the stores of a service (`intervalq serve`), over gRPC."""
