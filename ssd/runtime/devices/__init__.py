"""Where a lane computes: a set of CPU cores, or a stream of a GPU."""
