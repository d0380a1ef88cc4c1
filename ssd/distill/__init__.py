"""Distillation: trains a draft for any target on the target's own answers; see `python -m ssd.distill --help`."""
