"""`nats://`: streams of JetStream."""
