"""Counting accelerators without torch: one file for each vendor, asked of what its driver left on the machine."""
