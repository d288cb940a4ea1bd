"""The command line: commands, exit codes, messages, logging."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version as installed
from typing import Any, NoReturn, TypeVar

import msgspec
import yaml

from dnsserver import __version__, app
from dnsserver.answers.explain import as_text, counted, explain, severity_text
from dnsserver.forwarders.stub_blocks import (
    CHECKED,
    CLUSTER_DOMAIN,
    COREDNS,
    FORWARDERS,
    MAX_UPSTREAMS,
    printed,
    stub_address,
    stub_zone,
)
from dnsserver.message import records
from dnsserver.names import labels_of
from dnsserver.net.sockets import CannotListen
from dnsserver.settings.fields import (
    FLAGS,
    THEMES,
    ListenAddress,
    Settings,
    Wrong,
    nearest,
    option,
    read_settings,
)
from locator.cluster import api_client, dump_files
from locator.cluster.credentials import BadCluster
from locator.cluster.dumps.reading import BadDump, Dump
from locator.cluster.responses import Refused, Unreachable
from locator.ip import parse_client
from locator.model import ERROR, Finding
from locator.state.snapshot import Snapshot

T = TypeVar("T")

# A flag that needs no value never takes the word behind it for one.
_SWITCHES = {option(name): f"{option(name)}=on" for name, flag in FLAGS.items() if flag.switch}

DONE, FAILED, WRONG = 0, 1, 2
LIBRARIES = (
    *("dnslib", "trio", "kubernetes", "msgspec", "cachetools"),
    *("PyYAML", "hypercorn", "starlette", "prometheus-client"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 done, 1 failed, 2 wrong input."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except (Wrong, BadDump, BadCluster) as error:
        return _complain(str(error), WRONG)
    except (CannotListen, Refused, Unreachable) as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _complain(message: str, status: int) -> int:
    print(f"topodns: {message}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """argparse, whose errors are ours: one line, with the nearest known word."""

    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message[:1].lower()}{message[1:]}; see '{self.prog} --help'")


def _run(arguments: list[str]) -> int:
    parser, commands = _parsers()
    word = arguments[0] if arguments else ""
    if word in ("", "help", "-h", "--help"):
        parser.print_help()
        return DONE if word else WRONG
    if word == "--version":
        word = "version"
    if word not in commands:
        raise Wrong(f"{word}: unknown command{nearest(word, commands)}; see 'topodns --help'")
    command = commands[word]
    parsed, unknown = command.parse_known_intermixed_args([_SWITCHES.get(each, each) for each in arguments[1:]])
    for extra in unknown:
        flag = extra.partition("=")[0]
        if not extra.startswith("-") or extra == "-":
            raise Wrong(f"{extra!r} found, expected nothing more after {word}")
        if (settings := FLAGS.get(flag.removeprefix("--").replace("-", "_"))) is not None:
            raise Wrong(f"{flag}: a flag of {' and '.join(settings.commands)}, not of {word}")
        known = [each for action in command._actions for each in action.option_strings]
        raise Wrong(f"{flag}: unknown flag{nearest(flag, known)}")
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


def _parsers() -> tuple[_Parser, dict[str, argparse.ArgumentParser]]:
    parser = _Parser(
        prog="topodns",
        description="Answers each client with the endpoints of a headless Service that are nearest to it.",
        epilog="Every flag can also stand in a file (--config) and in the environment (TOPODNS_ and the flag in "
        "capitals, with _ for -). Flag beats environment beats file.",
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    commands: dict[str, argparse.ArgumentParser] = {}

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = subparsers.add_parser(
            name, help=text, description=text[:1].upper() + text[1:] + ".", allow_abbrev=False
        )
        made.set_defaults(run=run)
        commands[name] = made
        return made

    command("serve", _serve, "answer DNS queries")
    explaining = command("explain", _explain, "print what a client would be answered, and why")
    explaining.add_argument("name", metavar="NAME", nargs="?", help="the name that is asked for")
    explaining.add_argument("type", metavar="TYPE", nargs="?", default="A", help="the record type (default: A)")
    explaining.add_argument("--client", metavar="ADDR", help="the client's address, or a prefix")
    checking = command("check", _check, "report what is wrong in a cluster")
    command("controller", _controller, "keep a PodLocator for each pod, true at all times")
    corefiling = command("corefile", _corefile, "print the stub block for a forwarder, or check a Corefile")
    _add_corefile_flags(corefiling)
    command("version", _version, "print the versions of topodns, Python and the libraries")
    for made in (explaining, checking, corefiling):
        made.add_argument(
            "-o", dest="output", choices=("text", "json"), default="text", help="how to print (default: text)"
        )
    for name, made in commands.items():
        _add_settings(made, name)
    return parser, commands


def _add_corefile_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="forwarder",
        metavar="PROGRAM",
        help=f"whose configuration it is: {', '.join(FORWARDERS)}; with --check {' or '.join(CHECKED)} "
        f"(default with --check: {COREDNS})",
    )
    parser.add_argument(
        "--to",
        metavar="ADDR[:PORT],...",
        action="append",
        help="where topodns is, by commas (default port: 53); with --check: what forwards there is judged, and nothing "
        "else (default with --check: whatever forwards the zones)",
    )
    parser.add_argument(
        "--zone",
        metavar="NAME",
        action="append",
        help=f"a zone that topodns is asked for (default: {CLUSTER_DOMAIN}; with --check those of the plugins "
        "kubernetes in FILE; repeatable)",
    )
    parser.add_argument(
        "--fail-open", action="store_true", help=f"let {COREDNS} answer by itself while topodns does not (default: off)"
    )
    parser.add_argument("--check", metavar="FILE", help="a Corefile to be checked, or - for standard input")


def _add_settings(parser: argparse.ArgumentParser, command: str) -> None:
    groups = {theme: parser.add_argument_group(theme) for theme in THEMES if any(
        flag.theme == theme and command in flag.commands for flag in FLAGS.values())}  # fmt: skip
    defaults = Settings()
    for name, flag in FLAGS.items():
        if command in flag.commands:
            shown = flag.shown or getattr(defaults, name)
            again = "; repeatable" if flag.repeatable else ""
            groups[flag.theme].add_argument(
                option(name), metavar=flag.metavar, action="append", dest=f"setting_{name}",
                nargs="?" if flag.switch else None,
                help=f"{flag.help} (default: {shown}{again})".replace("%", "%%"),
            )  # fmt: skip
    if groups:
        parser.add_argument("--config", metavar="FILE", help="settings as YAML: the flags without their dashes")


def _settings(parsed: argparse.Namespace) -> Settings:
    given = {name: texts for name in FLAGS if (texts := getattr(parsed, f"setting_{name}", None)) is not None}
    path = parsed.config or os.environ.get("TOPODNS_CONFIG")
    settings, warnings = read_settings(
        flags=given, environment=os.environ, file=(path, _config(path)) if path is not None else None
    )
    _set_up_logging(settings)
    for warning in warnings:
        logging.getLogger("topodns").warning("%s", warning)
    return settings


def _config(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return yaml.safe_load(file)
    except OSError as error:
        raise Wrong(f"{path}: {error.strerror}, expected a file of settings") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise Wrong(f"{path}: {line}no YAML ({error.problem}), expected settings as KEY: VALUE") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Wrong(f"{path}: no YAML ({' '.join(str(error).split())}), expected settings as KEY: VALUE") from None


def _serve(parsed: argparse.Namespace) -> int:
    app.serve(_settings(parsed))
    return DONE


def _controller(parsed: argparse.Namespace) -> int:
    app.control(_settings(parsed))
    return DONE


def _explain(parsed: argparse.Namespace) -> int:
    if parsed.name is None or parsed.client is None:
        missing, what = ("NAME", "a domain name") if parsed.name is None else ("--client", "the client's address")
        raise Wrong(f"{missing}: missing, expected {what}; see 'topodns explain --help'")
    settings = _settings(parsed)
    name = _argument("NAME", labels_of, parsed.name, "a domain name")
    qtype = _argument("TYPE", records.type_number, parsed.type, "a record type such as A, AAAA or SRV")
    client = _argument("--client", parse_client, parsed.client, "an address or a prefix")
    snapshot, _ = _read(settings)
    explained = explain(name, qtype, client, snapshot, app.authority_of(settings))
    if parsed.output == "json":
        print(json.dumps(explained, indent=2))
    else:
        print(as_text(explained, colour=_coloured()), end="")
    return DONE


def _argument(name: str, parse: Callable[[str], T], text: str, expected: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise Wrong(f"{name}: {error}, expected {expected}") from None


def _coloured() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _check(parsed: argparse.Namespace) -> int:
    return _report(_read(_settings(parsed))[1], parsed.output)


def _report(found: Sequence[Finding], output: str) -> int:
    """Print what is wrong, errors first; return the exit status that says whether there is one."""
    findings = sorted(found, key=lambda each: each.severity != ERROR)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())
    else:
        coloured = _coloured()
        for finding in findings:
            print(f"{severity_text(finding.severity, colour=coloured)} {finding}")
        errors = sum(each.severity == ERROR for each in findings)
        print(f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    return FAILED if any(each.severity == ERROR for each in findings) else DONE


def _corefile(parsed: argparse.Namespace) -> int:
    to = [_argument("--to", stub_address, text, "ADDRESS or ADDRESS:PORT, by commas")
          for texts in parsed.to or () for text in texts.split(",")]  # fmt: skip
    zones = [_argument("--zone", stub_zone, text, f"a name such as {CLUSTER_DOMAIN}") for text in parsed.zone or ()]
    if parsed.check is not None:
        return _check_corefile(parsed, to, zones)
    if parsed.forwarder is None:
        raise Wrong("--for: missing, expected a program to print for, or --check FILE; see 'topodns corefile --help'")
    _one_of(parsed.forwarder, FORWARDERS)
    if not to:
        raise Wrong("--to: missing, expected the address of topodns; see 'topodns corefile --help'")
    if parsed.output != "text":
        raise Wrong(f"-o: {parsed.output!r} without --check, expected --check FILE beside it")
    if len(to) + parsed.fail_open > MAX_UPSTREAMS:
        raise Wrong(f"--to: {len(to)} addresses, expected at most {MAX_UPSTREAMS - parsed.fail_open}")
    try:
        text = printed(parsed.forwarder, to, zones or [CLUSTER_DOMAIN], fail_open=parsed.fail_open)
    except ValueError as error:
        raise Wrong(f"--fail-open: {error}") from None
    print(text, end="")
    return DONE


def _check_corefile(parsed: argparse.Namespace, to: Sequence[ListenAddress], zones: Sequence[str]) -> int:
    from dnsserver.forwarders import corefile_check
    from dnsserver.forwarders.caddyfile import Unparsable

    forwarder = parsed.forwarder or COREDNS
    _one_of(forwarder, CHECKED)
    if parsed.fail_open:
        raise Wrong("--fail-open: given beside --check, expected one or the other")
    if not parsed.check:
        raise Wrong("--check: '' found, expected a file, or - for standard input")
    try:
        if parsed.check == "-":
            if sys.stdin is None:
                raise Wrong("-: standard input is closed, expected a Corefile")
            octets = sys.stdin.buffer.read()
        else:
            with open(parsed.check, "rb") as file:
                octets = file.read()
        text = octets.decode(errors="replace")
        found = corefile_check.check(text, forwarder=forwarder, file=parsed.check, to=to, zones=zones)
    except (OSError, Unparsable) as error:
        why = f"{error.strerror}, expected a Corefile" if isinstance(error, OSError) else error
        raise Wrong(f"{parsed.check}: {why}") from None
    return _report(found, parsed.output)


def _one_of(forwarder: str, known: Sequence[str]) -> None:
    if forwarder not in known:
        raise Wrong(f"--for: {forwarder!r}, expected {', '.join(known[:-1])} or {known[-1]}")


def _read(settings: Settings) -> tuple[Snapshot, list[Finding]]:
    """Return the cluster as it is now, and all that is wrong in it."""
    store = app.store_of(settings)
    if settings.snapshot:
        dump = dump_files.read(dump_files.DumpFiles(settings.snapshot).inputs())
    else:
        dump = Dump(*api_client.read(app.cluster_of(settings), store.kinds), {})
    dump_files.apply(dump.objects, store)
    snapshot = store.publish(int(time.time()))
    return snapshot, [*dump.findings, *dump.located(snapshot.findings)]


def _version(parsed: argparse.Namespace) -> int:
    print(f"topodns {__version__}")
    print(f"python {platform.python_version()}")
    for library in LIBRARIES:
        print(f"{library} {installed(library)}")
    return DONE


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row)


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("hypercorn").setLevel(logging.WARNING)  # says on which address it runs; we have said so
