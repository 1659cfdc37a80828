"""Forebay for Hugging Face's Trainer: a callback that saves by a schedule and gives back a folder to resume from."""

from forebay.checkpoint.adapters.transformers import ForebayCallback

__all__ = ["ForebayCallback"]
