"""intervalq.v1 over gRPC: the stores of a service, for the stores `intervalq://` of its clients."""
