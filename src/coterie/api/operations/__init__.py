"""One file per noun: what its operations take and give, and what they do. A file put here is found by itself."""
