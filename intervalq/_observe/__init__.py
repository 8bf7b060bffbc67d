"""What tells others about the starts of a shard. Shards that nobody observes pay nothing for it."""
