"""Benchmarks: kernels against the measured roofline of the machine, whole runs against other systems."""
