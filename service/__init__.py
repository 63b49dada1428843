"""The HTTP service: owns the wire and nothing of the mathematics."""
