"""Turns: one owner, one loop, one transcript each."""
