"""intervalq.v1: the stores of a service, over gRPC for stores `intervalq://`, and over HTTP/JSON."""
