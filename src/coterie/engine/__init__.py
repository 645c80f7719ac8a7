"""What runs: owns concurrency and the order of things, talks to the edges through ports."""
