"""Transfers as real TCP flows: one process holds the sockets of every host and moves bytes at the planned instants."""
