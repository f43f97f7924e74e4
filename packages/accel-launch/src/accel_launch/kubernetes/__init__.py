"""Launching on Kubernetes: what is asked for, as a manifest."""
