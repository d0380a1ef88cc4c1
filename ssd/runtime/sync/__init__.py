"""Mode sd: the draft proposes, then the target verifies."""
