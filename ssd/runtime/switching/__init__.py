"""One speculator after another: the backup draft, mode auto, and the costs that it decides by."""
