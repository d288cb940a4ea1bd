# SPDX-License-Identifier: Apache-2.0

"""``topodns completion``: lets a shell complete commands, flags and values, by argcomplete.

The code that it prints calls ``topodns`` itself at each tab key, so that it knows all flags of the installed version.
kubectl calls ``kubectl_complete-topodns`` for the same.
"""

from __future__ import annotations

import io
import os
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from functools import partial

from dnsserver.cli.errors import EXIT_DONE, PRINTING_STATUSES, WrongInput
from dnsserver.cli.output import write_as_it_is
from dnsserver.cli.parser import PLUGIN, CommandParser, Example, one_of, program
from locator.printable import shell_words

SHELLS = ("bash", "zsh", "fish")
CALLED = ("topodns", PLUGIN)  # the programs that are completed
NO_FILES, NO_SPACE = 4, 2  # what it tells kubectl: complete no files instead, add no space
PATHS = ("PATH", "FILE")  # what stands for a path in help

EXAMPLES = (
    Example("In bash, from ~/.bashrc:", "source <(topodns completion bash)"),
    Example("In zsh, from ~/.zshrc, after compinit:", "source <(topodns completion zsh)"),
    Example("In fish:", "topodns completion fish > ~/.config/fish/completions/topodns.fish"),
)
STATUSES = PRINTING_STATUSES


def add_arguments(parser: CommandParser) -> None:
    """Add the shell."""
    parser.usage = f"{parser.prog} SHELL [flags]"
    parser.positionals.add_argument(
        "shell", metavar="SHELL", nargs="?", choices=SHELLS, help=f"The shell: {one_of(SHELLS)}"
    )


def run(arguments: Namespace) -> int:
    """Print the code for the shell."""
    if arguments.shell is None:
        raise WrongInput(f"SHELL: missing, expected {one_of(SHELLS)}; see '{program()} completion --help'")
    from argcomplete.shell_integration import shellcode

    write_as_it_is(shellcode(CALLED, shell=arguments.shell, complete_arguments=["-o", "nospace"]))
    return EXIT_DONE


def complete(words: Sequence[str]) -> int:
    """Print what completes a command line: that in the environment, or the *words* that kubectl gives."""
    if "_ARGCOMPLETE" not in os.environ:
        return _complete_for_kubectl(words)
    _complete(os.environ["COMP_LINE"])
    return EXIT_DONE


def _complete(line: str, stream: io.StringIO | None = None) -> None:
    """Write the completions of *line*, as the environment asks for them, to *stream*, else to the shell."""
    import argcomplete

    argcomplete.autocomplete(
        _whole(line), always_complete_options="long", exit_method=lambda *_: None, output_stream=stream
    )


def _complete_for_kubectl(words: Sequence[str]) -> int:
    """Print the completions of the last of *words*, as cobra's programs do: a line for each, and a last one."""
    *before, last = words or ("",)
    line = f"{shell_words('topodns', *before)} {last}"
    os.environ |= {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line.encode()))}
    os.environ |= {"_ARGCOMPLETE_SHELL": "fish", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}  # nothing escaped or added
    os.environ |= {"_ARGCOMPLETE_DFS": "\t", "_ARGCOMPLETE_IFS": "\n"}
    _complete(line, found := io.StringIO())
    completions = found.getvalue().split("\n") if found.getvalue() else []
    folder = any(text.partition("\t")[0].endswith("/") for text in completions)
    write_as_it_is("".join(f"{text}\n" for text in [*completions, f":{NO_FILES | NO_SPACE if folder else NO_FILES}"]))
    return EXIT_DONE


def _whole(line: str) -> CommandParser:
    """Return a parser of the whole command line, with the arguments of those commands that *line* names."""
    from argcomplete.completers import FilesCompleter

    from dnsserver.cli.dispatch import COMMANDS, module_of

    whole = CommandParser(prog="topodns", description="")
    whole.flags.add_argument("--version", action="store_true", help=COMMANDS["version"])
    commands = whole.add_subparsers(parser_class=CommandParser)
    for name, summary in COMMANDS.items():
        parser = commands.add_parser(name, help=summary, description=summary)
        if name not in line.split():
            continue
        module_of(name).add_arguments(parser)
        for action in parser.actions():
            words = parser.words.get(action.dest, tuple(action.choices or ()))
            completer = FilesCompleter() if action.metavar in PATHS else partial(_words, words)
            setattr(action, "completer", completer)  # noqa: B010  argcomplete looks for it
            if action.help and action.help != SUPPRESS:  # the first sentence, without the default
                action.help = action.help.partition(". ")[0].partition(" (default")[0]
    return whole


def _words(words: Sequence[str], **_: object) -> Sequence[str]:
    """Return all values that are known of a flag: argcomplete leaves out what does not fit."""
    return words
