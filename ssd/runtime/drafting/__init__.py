"""A draft at work, in either mode: its passes, its state of a sequence, and how its tokens are chosen."""
