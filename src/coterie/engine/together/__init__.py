"""Agents that work for each other."""
