"""Distillation: a draft for any target, from its own answers. Command line: python -m ssd.distill --help."""
