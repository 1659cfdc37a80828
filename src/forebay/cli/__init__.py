"""`forebay …`: the command line. `main` runs it and returns the exit code (`forebay.cli.exits` says which)."""

from forebay.cli.app import main as main
