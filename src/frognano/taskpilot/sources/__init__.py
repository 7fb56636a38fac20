"""Where bugs come from; one source a file."""
