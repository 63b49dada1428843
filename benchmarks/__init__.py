"""Side by side with what a user would pick instead. Run by `make bench`; imported by nothing."""
