"""Environments for developers: made, filled and renewed only when something changed."""
