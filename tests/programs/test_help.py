# SPDX-License-Identifier: Apache-2.0

"""What ``--help`` and the manual page say of every command: flags, values, examples, exit statuses."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from dnsserver.cli.dispatch import COMMANDS, EXAMPLES, parser_of
from dnsserver.cli.parser import Example
from dnsserver.cli.settings_flags import settings_of
from docs.pages import man_page
from tests.kit.commands_in_process import Run
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT, needs_tool

DONE, FAILED, WRONG = 0, 1, 2
READS_A_CLUSTER = [name for name in COMMANDS if "--kubeconfig" in parser_of(name).known_flags()]

each_command = pytest.mark.parametrize("name", COMMANDS)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@each_command
def test_help(topodns: Run, name: str) -> None:
    """Usage, what the command does, its flags, examples, and what each exit status means, in this order."""
    ran = topodns(name, "--help")
    assert (ran.status, ran.err) == (DONE, "") and ran.out.endswith("\n")
    assert ran.out.startswith(f"usage: topodns {name} ") and f"\n\n{COMMANDS[name]}.\n\n" in ran.out
    headings = re.findall(r"^(\w[\w ]*):$", ran.out, re.MULTILINE)
    assert next(heading for heading in headings if heading != "Arguments") == "Flags"
    assert headings[-2:] == ["Examples", "Exit status"]
    assert topodns("help", name).out == ran.out
    statuses = ran.out.partition("\nExit status:\n")[2]
    assert re.findall(r"^  (\d)   \w", statuses, re.MULTILINE) == ["0", "1", "2"]
    for example in parser_of(name).examples:
        assert f"  # {example.about}\n  {example.command}\n" in ran.out


@each_command
def test_help_names_each_word_that_a_flag_takes(name: str) -> None:
    """The values of an enumeration stand in its help."""
    parser = parser_of(name)
    for action in parser.actions():
        words = set(parser.words.get(action.dest) or action.choices or ())
        shown = "" if action.metavar else " ".join(words)  # argparse shows them in the place of a value
        assert action.help and words <= {*re.findall(r"\w+", f"{action.help} {shown}")}


@pytest.mark.parametrize("name", READS_A_CLUSTER)
def test_help_has_common_flags_first(topodns: Run, name: str) -> None:
    """What people need often stands before what they need seldom: first the cluster, last the log."""
    headings = re.findall(r"^(\w[\w ]*):$", topodns(name, "--help").out, re.MULTILINE)
    themes = headings[headings.index("Flags") + 1 : -2]
    if name in ("serve", "explain", "check", "simulate", "console"):
        text = in_one_line(topodns(name, "--help").out)
        assert {"Names and answers", "Clients and forwarders"} <= set(themes)
        assert "--ttl SECONDS TTL of the records in an answer (default: 5)" in text
        assert "(default: cluster.local, in-addr.arpa, ip6.arpa; repeatable)" in text
    assert themes[0] == "Cluster to read" and themes[-1] == "Logging"
    assert {"--context", "--config", "--log-format"} <= set(parser_of(name).known_flags())


def test_version_and_help_of_the_program(topodns: Run) -> None:
    """``--version`` is ``version``; ``--help`` names every command, and so does the program without one."""
    assert topodns("--version") == topodns("version")
    ran = topodns("--help")
    assert topodns("help") == topodns("-h") == ran and topodns() == (WRONG, ran.out, "")
    assert all(f"\n  {name} " in ran.out and summary in in_one_line(ran.out) for name, summary in COMMANDS.items())
    assert "--version" in ran.out and "\nExit status:\n  0   " in ran.out and EXAMPLES[0].command in ran.out


def arguments_in(example: Example) -> list[str]:
    """Return the arguments of ``topodns`` in an example; it may stand in a pipe, or in a substitution of a shell."""
    (found,) = re.findall(r"(?:^|\| |\(|-- )topodns ([^|)>]*)", example.command)
    return shlex.split(found)


ALL_EXAMPLES = [
    *(("", example) for example in EXAMPLES),
    *((name, example) for name in COMMANDS for example in parser_of(name).examples),
]
each_example = pytest.mark.parametrize(("name", "example"), ALL_EXAMPLES, ids=[row[1].command for row in ALL_EXAMPLES])


@each_example
def test_examples_can_be_parsed(name: str, example: Example, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An example of a command is one of it, its flags exist, and so do the values that it gives them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.yaml").write_text("ttl: 7\n")
    command, *arguments = arguments_in(example)
    assert command == (name or command) and example.about.endswith((":", "?"))
    given, unknown = parser_of(command).parse(arguments)
    assert not unknown
    if "--config" in parser_of(command).known_flags():
        settings_of(given)


@each_example
def test_examples_are_for_a_shell(name: str, example: Example) -> None:
    """Outside quotes, nothing is escaped: ``&&`` is an operator of the shell, ``\\&\\&`` an argument."""
    assert "\\" not in re.sub(r"'[^']*'|\"[^\"]*\"", "", example.command)


@each_example
def test_examples_can_be_run(
    topodns: Run, name: str, example: Example, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that need no cluster or server do what they say, here with the example cluster."""
    command, *arguments = arguments_in(example)
    has_settings = "--config" in parser_of(command).known_flags()
    if command in ("console", "serve") or "-" in arguments or (has_settings and "cluster.yaml" not in arguments):
        return
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "cluster.yaml", tmp_path)
    (tmp_path / "Corefile").write_text(topodns("corefile", "--for", "coredns", "--to", "10.96.0.53").out)
    ran = topodns(command, *arguments)
    assert ran.status in (DONE, FAILED) and ran.err == "" and ran.out
    assert command != "explain" or not re.search("NXDOMAIN|located by +unknown", ran.out)


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manual page, as ``make man`` makes it."""
    path = tmp_path_factory.mktemp("man") / "topodns.1"
    path.write_text(man_page.document())
    return path


@pytest.mark.parametrize(
    ("tool", "flags"),
    [("man", ["--warnings=mac,w", "-E", "utf-8", "-l"]), ("mandoc", ["-T", "lint"])],
    ids=["groff", "mandoc"],
)
def test_manual_page_is_well_formed(manual: Path, tool: str, flags: list[str]) -> None:
    """groff and mandoc find nothing wrong in it, but that it has no date: the same version has the same page."""
    env = environment({"MANROFFSEQ": "", "MANWIDTH": "80"})
    ran = subprocess.run([needs_tool(tool), *flags, manual], env=env, capture_output=True, text=True, check=False)
    found = ran.stderr + (ran.stdout if tool == "mandoc" else "")
    assert [line for line in found.splitlines() if "missing date" not in line] == []


def test_manual_page_is_complete(manual: Path) -> None:
    """It has every command with its flags, examples and statuses, as they are typed."""
    env = environment({"MANWIDTH": "1000", "LC_ALL": "C.UTF-8"})
    ran = subprocess.run([needs_tool("man"), "-l", manual], env=env, capture_output=True, text=True, check=True)
    chapters = dict(re.findall(r"^TOPODNS (\w+)\n(.*?)(?=^[A-Z])", ran.stdout, re.MULTILINE | re.DOTALL))
    assert {name.lower() for name in chapters} == set(COMMANDS)
    for name in COMMANDS:
        parser, chapter = parser_of(name), chapters[name.upper()]
        assert all(re.search(rf"(^ +|, ){flag}\b", chapter, re.MULTILINE) for flag in parser.known_flags())
        # Unless it is escaped, some versions of groff print a typographer's hyphen, which nobody can copy.
        assert all(flag.replace("-", "\\-") in manual.read_text() for flag in parser.known_flags())
        assert all(f" {example.command}\n" in chapter for example in parser.examples)
        assert all(f"{status}      {meaning}\n" in chapter for status, meaning in parser.statuses.items())
