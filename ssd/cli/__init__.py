"""Code that the command lines share."""
