"""What a process claims and settles, in few calls."""
