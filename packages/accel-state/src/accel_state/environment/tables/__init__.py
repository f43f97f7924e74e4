"""The tables of settings, one file per concern: a title and the settings under it."""
