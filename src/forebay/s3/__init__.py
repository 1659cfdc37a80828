"""The S3 language, sans-I/O: pure functions of bytes. Opens no socket, no file and no clock; time is an argument."""
