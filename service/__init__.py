"""The HTTP service: owns the wire and nothing of the mathematics."""

__version__ = "0.1.0"
