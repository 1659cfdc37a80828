"""What each S3 operation does: from a checked request to the engine and back to an answer. One file a subject."""
