"""`make image-check`: the container image, built and run for real where there is no engine."""
