"""The test harness: live worlds of processes, forked scripts, fake devices, and checks for leaks.

`plugin` is its pytest plug-in, which the `conftest.py` of the checkout loads.
"""
