"""Names that users import from `accel.big_modeling`; see `accel.aliases`."""

from accel.aliases import aliases

__getattr__, __dir__, __all__ = aliases(
    __name__,
    private={
        "_refuse_recurrent_layers_under_sequence_parallelism": (
            "accel_backends.plans.transformers_models:check_layers_are_shareable"
        )
    },
)
