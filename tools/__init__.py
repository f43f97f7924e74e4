"""Developer programs: set-up, checks, release, benchmarks, the test harness."""
