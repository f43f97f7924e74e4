"""How the files of a run are called."""

OPTIMIZER_NAME = "optimizer"
PROFILE_PATTERN_NAME = "profile_{suffix}.json"
RNG_STATE_NAME = "random_states"
SAMPLER_NAME = "sampler"
SCALER_NAME = "scaler.pt"
SCHEDULER_NAME = "scheduler"
