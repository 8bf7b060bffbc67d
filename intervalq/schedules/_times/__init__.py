"""When a schedule occurs: pure functions of instants, in microseconds since 1970."""
