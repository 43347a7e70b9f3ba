"""The staging folder: every file in it, who writes it, and when it is deleted."""
