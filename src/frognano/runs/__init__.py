"""What is remembered: the run store, crash-safe and resumable, and the recipes that runs are made from."""

from frognano.runs.files import StoreError
from frognano.runs.rows import Decision, Rejection, RolloutKey, RolloutRow
from frognano.runs.store import AlreadyRecorded, RunStore

__all__ = ["AlreadyRecorded", "Decision", "Rejection", "RolloutKey", "RolloutRow", "RunStore", "StoreError"]
