"""The config file: its path, its keys and values, reading and writing."""
