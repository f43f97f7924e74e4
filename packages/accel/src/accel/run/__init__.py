"""The components of a run, each with one owner per fact; the `Accelerator` makes them and delegates to them."""
