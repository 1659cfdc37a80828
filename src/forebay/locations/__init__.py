"""Where a checkpoint lives: a folder, S3, GCS, Azure, or memory, behind one small interface."""

from forebay.locations.interface import Absent, Buffer, Condition, Entry, Listing, Location, Unchanged, Upload
from forebay.locations.urls import open_location

__all__ = ["Absent", "Buffer", "Condition", "Entry", "Listing", "Location", "Unchanged", "Upload", "open_location"]
