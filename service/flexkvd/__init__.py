"""The daemon: sockets, clock, executor, REST."""
