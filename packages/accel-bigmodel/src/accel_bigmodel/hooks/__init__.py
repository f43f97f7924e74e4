"""Hooks around the forward pass of modules: the protocol, and one file per kind of hook."""
