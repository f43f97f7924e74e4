"""Names that users import from `accel.utils.launch`; see `accel.aliases`."""

from accel.aliases import aliases

__getattr__, __dir__, __all__ = aliases(
    __name__, private={"_convert_nargs_to_dict": "accel_launch.sagemaker.inputs:hyperparameters_of"}
)
