"""The Accelerator's methods, one file per concern; each delegates to the component that owns the work."""
