"""Compiles every GPU kernel and reads registers, spills and instructions from the binary; no GPU is needed."""
