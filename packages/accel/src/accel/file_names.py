"""How the files of a run are called."""

PROFILE_PATTERN_NAME = "profile_{suffix}.json"
