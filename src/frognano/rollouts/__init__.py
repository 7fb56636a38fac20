"""Does one task once, and many at a time."""
