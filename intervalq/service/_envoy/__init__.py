"""Envoy's rate limit service, so that proxies pace requests by queues."""
