"""Exit codes that scripts can rely on, and the errors that carry them.

0    done, and the answer is yes
1    done, but the answer is no: degraded, not ready, damaged, failed; the text says what
2    the command line, a configuration file or an environment variable is wrong
3    no server could be reached
4    the server refused these credentials
70   a bug in Forebay
130  interrupted with Ctrl-C
"""

from __future__ import annotations

from forebay.errors import ForebayError

OK = 0
NO = 1
USAGE = 2
UNREACHABLE = 3
DENIED = 4
BUG = 70
INTERRUPTED = 130


class CommandFailed(ForebayError):  # noqa: N818 - it is an outcome, with an exit code
    """A command cannot do what was asked; `exit_code` says which kind of reason."""

    exit_code = NO


class WrongUsage(CommandFailed):
    """What was typed, or what the environment says, makes no sense; the message says what does."""

    exit_code = USAGE


class ServerUnreachable(CommandFailed):
    """Nothing answers at the endpoint, or not as a Forebay server does."""

    exit_code = UNREACHABLE


class AccessDenied(CommandFailed):
    """The server answered, and does not accept these credentials for this."""

    exit_code = DENIED
