"""Mode ssd: the draft prepares speculations for the likely outcomes while the target verifies."""
