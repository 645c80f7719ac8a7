"""Models that turn texts into vectors. Each is loaded when first used."""
