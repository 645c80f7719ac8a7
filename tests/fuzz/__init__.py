"""Fuzzing: `python -m tests.fuzz WHAT --minutes N --seed S` sends a real gateway what nobody should ever send it."""
