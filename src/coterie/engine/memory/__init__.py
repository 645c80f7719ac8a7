"""What agents remember, and how it is found again."""
