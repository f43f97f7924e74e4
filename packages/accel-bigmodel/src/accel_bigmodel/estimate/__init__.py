"""Estimate the memory of a model without loading its weights."""
