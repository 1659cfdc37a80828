"""Forebay for Lightning: a callback that saves by a schedule, and the plugin with which Lightning loads what it saved."""

from forebay.checkpoint.adapters.lightning import ForebayCheckpoint, ForebayIO

__all__ = ["ForebayCheckpoint", "ForebayIO"]
