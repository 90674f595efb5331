"""A run seen while it goes on, from outside: a terminal view, and what other tools draw. Reads, never writes to it."""
