"""Pacing over HTTP/JSON (intervalq.v1), for programs in any language."""
