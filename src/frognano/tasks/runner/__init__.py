"""What runs inside the box, on the standard library and pytest alone. Bound read-only; never imported by the host."""
