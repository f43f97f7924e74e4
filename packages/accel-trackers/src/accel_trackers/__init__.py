"""Where metrics go: one interface over experiment trackers for PyTorch programs."""

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_trackers.abilities import ABILITIES as ABILITIES
    from accel_trackers.abilities import LogsArtifacts as LogsArtifacts
    from accel_trackers.abilities import LogsFigures as LogsFigures
    from accel_trackers.abilities import LogsHistograms as LogsHistograms
    from accel_trackers.abilities import LogsImages as LogsImages
    from accel_trackers.abilities import LogsTables as LogsTables
    from accel_trackers.aim import AimTracker as AimTracker
    from accel_trackers.background import BackgroundLog as BackgroundLog
    from accel_trackers.catalogue import LOGGER_TYPE_TO_CLASS as LOGGER_TYPE_TO_CLASS
    from accel_trackers.catalogue import TRACKERS as TRACKERS
    from accel_trackers.catalogue import get_available_trackers as get_available_trackers
    from accel_trackers.catalogue import register_tracker_class as register_tracker_class
    from accel_trackers.clearml import ClearMLTracker as ClearMLTracker
    from accel_trackers.comet_ml import CometMLTracker as CometMLTracker
    from accel_trackers.dvclive import DVCLiveTracker as DVCLiveTracker
    from accel_trackers.errors import IncompleteTrackerError as IncompleteTrackerError
    from accel_trackers.errors import TrackerError as TrackerError
    from accel_trackers.failures import OnError as OnError
    from accel_trackers.failures import check_on_error as check_on_error
    from accel_trackers.general_tracker import GeneralTracker as GeneralTracker
    from accel_trackers.jsonl import JsonlTracker as JsonlTracker
    from accel_trackers.main_process import NoRun as NoRun
    from accel_trackers.main_process import on_main_process as on_main_process
    from accel_trackers.mlflow import MLflowTracker as MLflowTracker
    from accel_trackers.selection import filter_trackers as filter_trackers
    from accel_trackers.selection import start_trackers as start_trackers
    from accel_trackers.service import ServiceTracker as ServiceTracker
    from accel_trackers.swanlab import SwanLabTracker as SwanLabTracker
    from accel_trackers.tensorboard import TensorBoardTracker as TensorBoardTracker
    from accel_trackers.trackio import TrackioTracker as TrackioTracker
    from accel_trackers.wandb import WandBTracker as WandBTracker

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ABILITIES": "accel_trackers.abilities",
        "AimTracker": "accel_trackers.aim",
        "BackgroundLog": "accel_trackers.background",
        "ClearMLTracker": "accel_trackers.clearml",
        "CometMLTracker": "accel_trackers.comet_ml",
        "DVCLiveTracker": "accel_trackers.dvclive",
        "GeneralTracker": "accel_trackers.general_tracker",
        "IncompleteTrackerError": "accel_trackers.errors",
        "JsonlTracker": "accel_trackers.jsonl",
        "LOGGER_TYPE_TO_CLASS": "accel_trackers.catalogue",
        "LogsArtifacts": "accel_trackers.abilities",
        "LogsFigures": "accel_trackers.abilities",
        "LogsHistograms": "accel_trackers.abilities",
        "LogsImages": "accel_trackers.abilities",
        "LogsTables": "accel_trackers.abilities",
        "MLflowTracker": "accel_trackers.mlflow",
        "NoRun": "accel_trackers.main_process",
        "OnError": "accel_trackers.failures",
        "ServiceTracker": "accel_trackers.service",
        "SwanLabTracker": "accel_trackers.swanlab",
        "TRACKERS": "accel_trackers.catalogue",
        "TensorBoardTracker": "accel_trackers.tensorboard",
        "TrackerError": "accel_trackers.errors",
        "TrackioTracker": "accel_trackers.trackio",
        "WandBTracker": "accel_trackers.wandb",
        "check_on_error": "accel_trackers.failures",
        "filter_trackers": "accel_trackers.selection",
        "get_available_trackers": "accel_trackers.catalogue",
        "on_main_process": "accel_trackers.main_process",
        "register_tracker_class": "accel_trackers.catalogue",
        "start_trackers": "accel_trackers.selection",
    },
)
