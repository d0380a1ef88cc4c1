"""The report on every GPU kernel: its registers, spills and instructions, read from the binary; it needs no GPU."""
