"""The command line: parse, call, print. One file per command, put together in main.py."""
