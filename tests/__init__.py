"""The tests; `python -m tests.smoke` runs the smoke script against a server of its own."""
