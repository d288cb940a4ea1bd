"""How a command ends: its exit status, and the errors that end it early."""

from __future__ import annotations

DONE, FAILED, WRONG = 0, 1, 2
READER_LEFT = 141  # what a shell shows for a program that SIGPIPE has ended


class CommandError(Exception):
    """Ends a command with an exit status; the text is the message, none where there is nothing to say."""

    status: int


class Failed(CommandError):
    """The command met a failure: a port in use, say, or an API server out of reach."""

    status = FAILED


class WrongInput(CommandError):
    """The command line, a setting or an input file cannot be used."""

    status = WRONG


class ReaderLeft(CommandError):
    """Nobody reads the output any more, as in ``topodns check | head``."""

    status = READER_LEFT
