"""Functions that users import beside the Accelerator, and that belong to no other package."""
