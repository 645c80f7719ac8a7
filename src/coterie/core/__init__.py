"""The rules: pure functions and values, no I/O, no clock."""
