"""A simulation of decoding on hardware that is not at hand; `python -m ssd.simulate`."""
