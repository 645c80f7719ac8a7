"""SQLite and PostgreSQL through one set of statements."""
