# SPDX-License-Identifier: Apache-2.0

"""Every setting of topodns: a frozen record for each theme, with the flag of each field.

Pure. ``reading`` builds the records from flags, environment variables and a file; ``values`` parses single values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dnsserver.settings import values
from dnsserver.settings.answering import AnswerSettings, ClientSettings, SeveralClustersSettings
from dnsserver.settings.flags import (
    ASKING,
    EVERY_COMMAND,
    READING,
    SERVING,
    Flag,
    flags_in,
    repeatable,
    single,
    switch,
)
from dnsserver.settings.running import ControllerSettings, LoggingSettings, ServerSettings, WebhookSettings
from dnsserver.settings.values import any_text, choice
from locator.model import ERROR, WARNING

DEFAULT_SERVER = "http://127.0.0.1:9153"  # of ``tail`` and others: where ``serve`` listens on the same machine


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """What a command prints, and when it fails."""

    candidates: bool = switch(help="List every endpoint, and why it was chosen or not")
    """Off, because a Service can have thousands of endpoints."""

    fail_on: str = single(
        ERROR,
        choice("SEVERITY", ERROR, WARNING),
        help="The least severe finding for which the exit status is 1: error or warning",
        commands=("check",),
    )
    """A warning may be meant; a pipeline that wants none says so."""


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where the cluster is read."""

    snapshot: tuple[str, ...] = repeatable(
        (),
        any_text("PATH", "a file, a folder or -"),
        help="Read the cluster from this dump, not from an API server: a file or folder with the YAML or JSON that "
        "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml' prints, or - for standard input. "
        "'serve' reads it again when it changes and on SIGHUP",
        shown="none",
        commands=(*READING, "dump"),
    )
    """topodns merges several dumps. If an object is in two of them, the later one counts."""

    server: str | None = single(
        None,
        values.SERVER_URL,
        help="Ask the running server with its HTTP API at this URL: an address of 'serve --http' where --console is on",
        shown="tail, clients: http://127.0.0.1:9153; explain: none, it reads the cluster itself",
        commands=ASKING,
    )
    """``explain`` then answers from what the server has read, by the server's settings."""

    kubeconfig: str | None = single(
        None,
        any_text("PATH", "a kubeconfig"),
        help="Read the live cluster of this kubeconfig",
        shown="in a pod its service account, else $KUBECONFIG or ~/.kube/config",
    )
    """Without --snapshot, topodns reads a live cluster."""

    context: str | None = single(
        None,
        any_text("NAME", "a context of the kubeconfig"),
        help="Use this context of the kubeconfig",
        shown="the current context",
    )
    """Works like ``kubectl --context``."""


@dataclass(frozen=True, kw_only=True)
class Settings(
    OutputSettings,
    SourceSettings,
    AnswerSettings,
    SeveralClustersSettings,
    ClientSettings,
    ControllerSettings,
    WebhookSettings,
    ServerSettings,
    LoggingSettings,
):
    """What the operator configures: all themes together, so that what needs one theme alone can ask for that.

    A command reads the settings once, when it starts, and hands them down.
    """


class Theme(NamedTuple):
    """A group of ``--help``: its title, its settings, and the commands that have those that name no commands."""

    title: str
    settings: type
    commands: tuple[str, ...]


THEMES = (  # in the order of --help
    Theme("Output", OutputSettings, ("explain",)),
    Theme("Cluster to read", SourceSettings, EVERY_COMMAND),
    Theme("Names and answers", AnswerSettings, READING),
    Theme("Several clusters", SeveralClustersSettings, READING),
    Theme("Clients and forwarders", ClientSettings, READING),
    Theme("Controller", ControllerSettings, ("controller",)),
    Theme("Webhook", WebhookSettings, ("webhook",)),
    Theme("Server", ServerSettings, SERVING),
    Theme("Logging", LoggingSettings, EVERY_COMMAND),
)
FLAGS: Mapping[str, Flag] = {
    name: flag._replace(theme=theme.title, commands=flag.commands or theme.commands)
    for theme in THEMES
    for name, flag in flags_in(theme.settings).items()
}
OLD_NAMES: Mapping[str, str] = {flag.old_name: name for name, flag in FLAGS.items() if flag.old_name}
