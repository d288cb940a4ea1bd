# SPDX-License-Identifier: Apache-2.0

"""``topodns dump``: writes one archive with what a bug report needs, and nothing that is confidential."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING

from dnsserver import __version__
from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, Failed, WrongInput
from dnsserver.cli.log_format import say
from dnsserver.cli.output import standard_output, write
from dnsserver.cli.parser import CommandParser, Example
from dnsserver.cli.settings_flags import add_flags, add_settings, flags_of, settings_of
from dnsserver.settings import values
from dnsserver.settings.flags import single, switch
from locator.printable import shell_words
from locator.times import time_text

if TYPE_CHECKING:
    from dnsserver.cli.reading.dumping import Dumping, Member
    from dnsserver.settings.settings import Settings
    from dnsserver.tools.doctor.facts import Facts

STANDARD_OUTPUT = "-"
KEY_OCTETS = 32
FOLDER = "topodns-dump"
EXAMPLES = (
    Example("Write an archive about the cluster of the current kubeconfig:", "topodns dump"),
    Example(
        "Hash the names and addresses in it, and say how the file is called:",
        "topodns dump --hash-names --output bug.tar.gz",
    ),
    Example(
        "Write it from inside, where pods can be reached:",
        "kubectl -n topodns exec deploy/topodns -- topodns dump --output - > bug.tar.gz",
    ),
    Example(
        "Make one of what kubectl printed:", "topodns dump --snapshot cluster.yaml --hash-names --output bug.tar.gz"
    ),
)
STATUSES = {
    **STATUSES,
    EXIT_DONE: "the archive is written; the parts that could not be read are named",
    EXIT_FAILED: "the archive could not be written, or the API server cannot be reached",
}
README = """What this archive is

'topodns dump' (topodns {version}) wrote it for a bug report. Look at it before you send it.

  objects/       what topodns reads of the cluster: of each object only the fields that decide an answer. Of annotations
                 only those that topodns reads
{installation}\
  version.txt    the versions of topodns, Python and the libraries
  manifest.json  all files, and under "errors" what could not be read, and why

What is not in it: Secrets, values of environment variables, other ConfigMaps, other workloads.
{names}
To see what topodns makes of it, unpack the archive, and give the flags of installation/deployments.json:

  topodns check --snapshot objects
  topodns explain NAME --client ADDRESS --snapshot objects
"""
INSTALLATION = """\
  installation/  Deployments, DaemonSets and pods of topodns: images, flags, names of variables, resources, status; and
                 the Events about them
  pods/          of each pod of topodns: metrics, checks{logs}
  doctor.json    what 'topodns doctor' found{doctor}
"""
FORWARDERS = """\
  forwarders/    the Corefiles of the cluster's DNS, without passwords
"""
HASHED = """
All names of this cluster, values of labels and addresses are hashed: the same name is the same word everywhere, and two
addresses share as many leading bits as those that they stand for. Nobody kept the key. Keys and names that Kubernetes
and topodns define stay. Logs, messages and Corefiles are left out.
"""


@dataclass(frozen=True, kw_only=True)
class DumpFlags:
    """What is written, and where."""

    output: str | None = single(
        None,
        values.as_it_is("FILE"),
        help="Write the archive to this file, which must not exist, or - for standard output",
        shown=f"{FOLDER}-DATE-TIME.tar.gz",
    )
    """A name of its own for each archive: none is ever overwritten."""

    hash_names: bool = switch(
        help="Hash the names of this cluster, values of labels and addresses, the same everywhere, by a key that "
        "nobody keeps; leave out logs, messages and Corefiles"
    )
    """Off, because names help whoever reads the report."""

    namespace: str | None = single(
        None,
        values.IN_NAMESPACE,
        short="-n",
        help="Namespace that topodns is installed in",
        shown="as 'doctor' finds it",
    )
    """The same as that of ``doctor``, whose findings are in the archive."""


def add_arguments(parser: CommandParser) -> None:
    """Add the file, whether to hash names, the namespace, and the settings."""
    add_flags(parser, DumpFlags)
    add_settings(parser, "dump", common=("snapshot",))


def run(arguments: Namespace) -> int:
    """Write the archive. What cannot be read is missing in it, and named."""
    settings, flags = settings_of(arguments), flags_of(arguments, DumpFlags)
    began = int(time.time())
    path = flags.output or f"{FOLDER}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(began))}.tar.gz"
    if path != STANDARD_OUTPUT and os.path.lexists(path):
        raise WrongInput(f"--output {path}: exists, expected a new file; remove it, or name another one")

    from dnsserver.cli.progress import shown_progress
    from dnsserver.cli.reading.dumping import Dumping
    from dnsserver.tools.dump.hashed_names import HashedNames

    names = HashedNames(os.urandom(KEY_OCTETS)) if flags.hash_names else None
    with shown_progress() as report:
        dumping = Dumping(names, report)
        members = _members(settings, flags.namespace, dumping, hashed=names is not None)
        first = next(members)  # nothing is written before the cluster has answered
        with _opened(path) as file:
            octets, number = _write(file, chain([first], members), dumping, began, hashed=names is not None)
    for name, why in dumping.errors:
        say(f"not read: {name}: {why}")
    text = f"{path}: {number} files, {octets / 1e6:.1f} MB unpacked; look at them before you send it"
    if path == STANDARD_OUTPUT:
        say(text)
    else:
        unpack, check = shell_words("tar", "-xzf", path), f"topodns check --snapshot {FOLDER}/objects"
        write(f"{text}\n$ {unpack}\n$ {check}\n")
    return EXIT_DONE


def _members(settings: Settings, namespace: str | None, dumping: Dumping, *, hashed: bool) -> Iterator[Member]:
    """Yield the files of the archive but the manifest.

    Raises CommandError before the first one if the dumps, or the API server, cannot be read.
    """
    from dnsserver.cli.commands.version import versions
    from dnsserver.cli.reading.dumping import Member

    if settings.snapshot:
        members: Iterable[Member] = dumping.files(settings.snapshot)
    else:
        members = _live(settings, namespace, dumping, hashed=hashed)
    yield Member("README.txt", _readme(live=not settings.snapshot, hashed=hashed).encode())
    yield Member("version.txt", versions().encode())
    yield from members


def _live(settings: Settings, namespace: str | None, dumping: Dumping, *, hashed: bool) -> Iterable[Member]:
    """Read the installation in a cluster; return that, and the objects, which are read when they are asked for."""
    import trio

    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.cli.reading.observing import observe
    from dnsserver.programs.from_settings import cluster_of, kubectl_of

    with cluster_errors(or_dump=True):
        client = cluster_of(settings)

    async def installation() -> list[Member]:
        facts = await observe(client, namespace, kubectl_of(settings))
        if facts.unreachable:
            raise Failed(facts.unreachable)
        return [*_doctor(facts, hashed=hashed), *await dumping.installation(client, facts)]

    return chain(trio.run(installation), dumping.live(client))


def _doctor(facts: Facts, *, hashed: bool) -> Iterator[Member]:
    """Yield what ``doctor`` says: if names are *hashed*, without any text about this cluster."""
    from dnsserver.cli.commands.doctor import result_of, text_of
    from dnsserver.cli.reading.dumping import Member
    from dnsserver.tools.doctor.diagnosis import diagnose
    from dnsserver.tools.dump.dumped import step_without_secrets

    steps = [*map(step_without_secrets, diagnose(facts))]
    if hashed:
        words = [{"code": step.code.name, "title": step.code.title, "status": step.status} for step in steps]
        yield Member("doctor.json", _json({"steps": words}))
        return
    yield Member("doctor.txt", text_of(steps, "utf-8", colour=False).encode())
    yield Member("doctor.json", _json(result_of(facts, steps)))


def _readme(*, live: bool, hashed: bool) -> str:
    logs = "" if hashed else ", and the last lines of their logs"
    doctor = ": which steps failed" if hashed else ", as in doctor.txt"
    parts = [INSTALLATION.format(logs=logs, doctor=doctor)] * live + [FORWARDERS] * (live and not hashed)
    return README.format(version=__version__, installation="".join(parts), names=HASHED if hashed else "")


def _json(content: object) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Yield a file that nobody else may read, and that gets its name when it is complete; or standard output.

    Raises Failed, BrokenPipe and WrongInput.
    """
    if path == STANDARD_OUTPUT:
        with standard_output() as stdout:
            if stdout.isatty():
                raise WrongInput("--output -: a terminal found, expected a file or a pipe, as in '> bug.tar.gz'")
            yield stdout.buffer
            stdout.buffer.flush()
        return
    try:
        descriptor, unfinished = tempfile.mkstemp(".part", f"{FOLDER}-", os.path.dirname(path) or ".")
    except OSError as error:
        raise WrongInput(f"--output {path}: {error.strerror}, expected a folder that can be written") from None
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(unfinished, path)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


def _write(
    file: IO[bytes], members: Iterable[Member], dumping: Dumping, began: int, *, hashed: bool
) -> tuple[int, int]:
    """Write the archive, with a manifest at its end; return the octets in it, and the number of files."""
    written: dict[str, int] = {}
    with tarfile.open(fileobj=file, mode="w|gz", format=tarfile.PAX_FORMAT) as archive:

        def add(name: str, content: bytes) -> None:
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), began, 0o600
            archive.addfile(entry, io.BytesIO(content))
            written[name] = len(content)

        for name, content in members:
            add(name, content)
        manifest = {
            "topodns": __version__,
            "time": time_text(began, "seconds"),
            "hashed_names": hashed,
            "octets": written,
            # Reasons may hold names: who has hashed them sees the reasons on standard error.
            "errors": [{"name": name} if hashed else {"name": name, "why": why} for name, why in dumping.errors],
        }
        add("manifest.json", _json(manifest))
    return sum(written.values()), len(written)
