"""Reads the cluster for a command, and turns errors of clusters and listeners into command errors.

It imports everything that reads clusters, so commands import it in ``run``, where ``--help`` does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dnsserver import app
from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.net.sockets import CannotListen
from dnsserver.settings.fields import Settings
from locator.cluster import api_client, dump_files
from locator.cluster.credentials import BadCluster
from locator.cluster.dumps.reading import BadDump
from locator.cluster.responses import Refused, Unreachable
from locator.state.cluster_view import ClusterView, Publication


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn errors of dumps, clusters and listeners into ``CommandError``s."""
    try:
        yield
    except (BadDump, BadCluster) as error:
        raise WrongInput(str(error)) from None
    except (CannotListen, Refused, Unreachable) as error:
        raise Failed(str(error)) from None


def read_cluster(settings: Settings) -> Publication:
    """Read the cluster once; return its snapshot and its findings. Raises CommandError."""
    store = app.store_of(settings)
    with cluster_errors():
        if settings.snapshot:
            batch = dump_files.read(dump_files.DumpFiles(settings.snapshot).inputs()).batch()
        else:
            batch = api_client.read(app.cluster_of(settings), store.kinds)
    view = ClusterView(store)
    view.take(batch)
    return view.publish(int(time.time()))
