"""The developers' own programs: set-up, checks, release, benchmarks."""
