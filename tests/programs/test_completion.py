# SPDX-License-Identifier: Apache-2.0

"""Completion of commands, flags and values, by the real shells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.commands_in_process import Run
from tests.kit.installed_scripts import installed_scripts
from tests.kit.programs import environment
from tests.kit.terminal import Terminal
from tests.kit.this_machine import needs_tool
from tests.kit.waiting import PATIENCE

WRONG = 2

# What somebody has typed before the tab key, and the whole last word after it. The other words are arguments.
WORDS = {
    "command": ("topodns expl", "explain"),
    "flag": ("topodns check --fail", "--fail-on"),
    "flag-between-others": ("topodns explain web --client 10.0.0.1 --cand", "--candidates"),
    "enumeration": ("topodns check --fail-on w", "warning"),
    "output": ("topodns explain -o ya", "yaml"),
    "off": ("topodns serve --http o", "off"),
    "record-type": ("topodns explain web AA", "AAAA"),
    "forwarder": ("topodns corefile --for unb", "unbound"),
    "shell": ("topodns completion fi", "fish"),
    "file": ("topodns check --snapshot clu", "cluster.yaml"),
}
# What shells split into words by rules of their own.
AT_A_PROMPT = {
    "command": WORDS["command"],
    "command-of-the-plugin": ("kubectl-topodns expl", "explain"),
    "enumeration-after-=": ("topodns serve --pods=ver", "--pods=verified"),
    "file-in-a-folder": ("topodns check --config folder/set", "folder/settings.yaml"),
}
NONSENSE = {
    "nothing": [""],
    "no-command": ["nonsense", ""],
    "no-flag": ["check", "--nonsense", ""],
    "open-quote": ["check", "'"],
    "line-break": ["'a", "\n"],
}
# Completes each command line, given in JSON as a list of words, as for kubectl; an empty line stands behind each.
COMPLETES = """
import json, os, sys
from dnsserver.cli.dispatch import complete
for words in json.loads(sys.argv[1]):
    os.environ.pop("_ARGCOMPLETE", None)
    assert complete(words) == 0
    print()
"""
STARTS = {
    "bash": (["--norc", "--noprofile", "-i"], "PS1="),
    "zsh": (["-f", "-i"], "PS1=; bindkey -e; autoload -Uz compinit; compinit -u -D"),
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a shell in a folder with files."""
    (tmp_path / "cluster.yaml").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "settings.yaml").touch()
    return environment({**installed_scripts(tmp_path / "bin"), "HOME": str(tmp_path)})


@pytest.mark.parametrize("shell", STARTS)
def test_at_a_prompt(tmp_path: Path, env: dict[str, str], shell: str) -> None:
    """The tab key completes the last word."""
    flags, start = STARTS[shell]
    with Terminal([needs_tool(shell), *flags], env=env, folder=tmp_path) as terminal:
        terminal.type(f"{start}; source <(topodns completion {shell}); printf '<%s>\\n' started\n")
        terminal.until("<started>")
        for typed, last in AT_A_PROMPT.values():
            words = [*typed.split()[:-1], last]
            # What stands in the line after the tab key becomes the arguments of printf, by Ctrl-A.
            terminal.type(f"{typed}\t\x01printf '<%s>' \n")
            shown = "".join(f"<{word}>" for word in words)
            assert terminal.until(f"<{words[0]}>(<[^>]*>)+").group().decode() == shown


def completed(command: Sequence[str], env: dict[str, str], folder: Path) -> list[str]:
    """Return the lines that *command* prints."""
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return ran.stdout.splitlines()


def test_in_fish(tmp_path: Path, env: dict[str, str]) -> None:
    """fish has a command for what it would show after the tab key, with what it says about each."""
    asked = "; ".join(f"echo '>'; complete -C '{typed}'" for typed, _ in AT_A_PROMPT.values())
    lines = completed([needs_tool("fish"), "-N", "-c", f"topodns completion fish | source; {asked}"], env, tmp_path)
    answers = "\n".join(lines).split(">\n")[1:]
    assert [answer.split() and answer.split()[0] for answer in answers] == [last for _, last in AT_A_PROMPT.values()]
    assert answers[0] == "explain\tPrint the answer that a client would get, and why\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "SHELL: missing, expected bash, zsh or fish; see 'topodns completion --help'"),
        (("tcsh",), "SHELL: 'tcsh', expected bash, zsh or fish; see 'topodns completion --help'"),
        (("bash", "zsh"), "'zsh' found, expected no more arguments after completion"),
    ],
    ids=["none", "unknown", "two"],
)
def test_which_shell(topodns: Run, arguments: tuple[str, ...], message: str) -> None:
    """One of those that are known."""
    ran = topodns("completion", *arguments)
    assert (ran.status, ran.out, ran.err) == (WRONG, "", f"topodns: {message}\n")


def completions(lines: Sequence[Sequence[str]], env: dict[str, str], folder: Path) -> list[list[str]]:
    """Return what kubectl is told about the last word of each line."""
    ran = subprocess.run([sys.executable, "-c", COMPLETES, json.dumps(lines)], env=env, cwd=folder, capture_output=True,
                         text=True, timeout=PATIENCE, check=True)  # fmt: skip
    assert ran.stderr == ""
    return [answer.splitlines() for answer in ran.stdout.removesuffix("\n\n").split("\n\n")]


def test_words(tmp_path: Path, env: dict[str, str]) -> None:
    """Commands, flags, and whatever words a flag takes."""
    lines = [typed.split()[1:] for typed, _ in WORDS.values()]
    found = [answer[0].partition("\t")[0] for answer in completions(lines, env, tmp_path)]
    assert found == [last for _, last in WORDS.values()]


def test_nonsense_completes_to_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    """While somebody types, the words before may be wrong: no message disturbs the prompt."""
    for answer in completions([*NONSENSE.values()], env, tmp_path):
        assert answer[-1] in (":4", ":6")
