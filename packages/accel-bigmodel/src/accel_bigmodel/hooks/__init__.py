"""Code around the forward of modules: the protocol, and one file per kind of hook."""
