"""Benchmarks: kernels against the machine's measured roofline, and whole systems against each other."""
