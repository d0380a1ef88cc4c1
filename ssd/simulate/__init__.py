"""Simulates decoding on hardware that is not at hand; see `python -m ssd.simulate --help`."""
