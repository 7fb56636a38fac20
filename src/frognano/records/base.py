"""The base of every record: immutable, no unknown fields, JSON that survives any bytes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A value object. Bytes travel through JSON as base64, so that a patch is byte-exact on the way back."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")
