"""Prepared data loaders."""
