# SPDX-License-Identifier: Apache-2.0

"""Exit statuses, and the errors that end a command with one of them."""

from __future__ import annotations

EXIT_DONE, EXIT_FAILED, EXIT_WRONG = 0, 1, 2
# What each status means, where a command has nothing of its own to say.
STATUSES = {
    EXIT_DONE: "done",
    EXIT_FAILED: "the command failed, such as for a port in use or an API server that cannot be reached, or has found "
    "an error",
    EXIT_WRONG: "the command line, a setting or an input file is wrong; the message says where, and what was expected",
}
PRINTING_STATUSES = {**STATUSES, EXIT_DONE: "printed", EXIT_FAILED: "standard output cannot be written"}
BROKEN_PIPE = 141  # the status that a shell reports for a program ended by SIGPIPE


class CommandError(Exception):
    """Ends a command with an exit status. Its text is printed unless it is empty."""

    status: int


class Failed(CommandError):
    """The command failed: a port is in use, for example, or the API server is unreachable."""

    status = EXIT_FAILED


class WrongInput(CommandError):
    """The command line, a setting or an input file is invalid."""

    status = EXIT_WRONG


class BrokenPipe(CommandError):
    """The reader of standard output has closed the pipe, as ``head`` does in ``topodns check | head``."""

    status = BROKEN_PIPE
