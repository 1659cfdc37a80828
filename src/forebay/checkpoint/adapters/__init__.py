"""Forebay behind the interfaces of other programs: torch DCP, Lightning, Hugging Face's Trainer, Levanter."""
