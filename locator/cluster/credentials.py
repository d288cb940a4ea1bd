"""Where a cluster's API server is, and with whose credentials it is asked: a kubeconfig, or a pod's service account.

With ``api_client`` the only imports of the official client. Everything here blocks: it runs in threads.
"""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import urllib3

from locator.cluster.responses import one_line

MAX_CONNECTIONS = 32  # kept open: one for each watch, some for writes
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes puts a pod's service account


class BadCluster(Exception):
    """A cluster that cannot be configured; the text names file and item, what was found and what is expected."""


class Access(NamedTuple):
    """A configured client of the official library; ``complete`` unless a plugin must be run for its credentials."""

    client: Any
    host: str
    namespace: str
    authority: str | None
    complete: bool

    def authorization(self) -> dict[str, str]:
        """Return the header that says who asks; a token file is read each minute. Raises BadCluster."""
        headers: dict[str, str] = {}
        try:
            self.client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
        except Exception as error:  # the library's hook raises whatever its parts do
            raise BadCluster(one_line(error)) from None
        return {key: value.strip() for key, value in headers.items()}


def _access(configuration: Any, namespace: str, *, complete: bool = True) -> Access:
    from kubernetes.client.api_client import ApiClient

    configuration.keep_alive = True  # TCP's own probes find a peer that vanished without a word
    configuration.connection_pool_maxsize = MAX_CONNECTIONS
    if not configuration.verify_ssl:  # as the kubeconfig says; the library would warn at each request
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    authority = configuration.ssl_ca_cert if configuration.verify_ssl else None
    return Access(ApiClient(configuration), configuration.host, namespace, authority, complete)


def _untyped(thing: Any) -> Any:
    """Return *thing* as what it is to a type checker: the library states few types."""
    return thing


def credentials_source(kubeconfig: str | None, context: str | None) -> _Account | _Kubeconfig:
    """Return where credentials come from: a kubeconfig, or in a pod, if neither is named, its service account."""
    in_pod = kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    return _Account() if in_pod else _Kubeconfig(kubeconfig, context)


class _Account:
    """The service account of the pod that this runs in."""

    def access(self, *, run: bool) -> Access:
        """Return a client. Raises BadCluster."""
        del run
        from kubernetes.client.configuration import Configuration
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader

        configuration, loader = Configuration(), _untyped(InClusterConfigLoader)
        try:
            loader(str(ACCOUNT / "token"), str(ACCOUNT / "ca.crt")).load_and_set(configuration)
        except (ConfigException, OSError, UnicodeDecodeError) as error:
            raise BadCluster(f"{ACCOUNT}: {one_line(error)}, expected the service account of a pod") from None
        try:
            namespace = (ACCOUNT / "namespace").read_text().strip()
        except (OSError, UnicodeDecodeError):
            namespace = ""
        return _access(configuration, namespace or "default")


class _Kubeconfig:
    """One context of the user's own configuration, which may lie in several files."""

    def __init__(self, path: str | None, context: str | None) -> None:
        self._context = context
        self._paths = path or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        self._from = "" if path else " (--kubeconfig or $KUBECONFIG names another)"

    def access(self, *, run: bool) -> Access:
        """Return a client; its plugin for credentials is not run unless *run*. Raises BadCluster."""
        from kubernetes.client.configuration import Configuration
        from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

        files = [path for path in self._paths.split(os.pathsep) if path]
        if not any(Path(path).expanduser().exists() for path in files):
            raise BadCluster(f"{self._paths}: no such file, expected a kubeconfig{self._from}")
        try:
            merger = _untyped(KubeConfigMerger)(self._paths)
        except Exception as error:  # the library checks no shape: YAML's errors, and whatever wrong shapes raise
            raise BadCluster(f"{self._paths}: {one_line(error)}, expected a kubeconfig") from None
        chosen = _chosen(self._paths, merger.config, self._context)
        user: Any = chosen.user
        plugin = user.value["user"].get("exec") if user is not None else None
        persist = merger.save_changes  # OpenID refreshes a token that is good once
        if plugin is not None:
            persist = None  # what a plugin says is for nobody's file
            cluster = chosen.cluster["cluster"]
            user.value["user"] = _run_plugin(chosen.name, user, cluster) if run else {}
        configuration = Configuration()
        try:
            # Without a base path, the files that a kubeconfig names are looked for beside it, as kubectl does.
            loader = _untyped(KubeConfigLoader)(
                merger.config, chosen.name, config_base_path=None, config_persister=persist
            )
            loader.load_and_set(configuration)
            return _access(configuration, chosen.namespace, complete=plugin is None or run)
        except Exception as error:
            raise BadCluster(f"{self._paths}: context {chosen.name!r}: {one_line(error)}") from None


class _Chosen(NamedTuple):
    """A context's name, and what it names, as the official library holds it."""

    name: str
    namespace: str
    cluster: Any
    user: Any


def _chosen(file: str, config: Any, wanted: str | None) -> _Chosen:
    """Look up a context and what it names, since the library's own words for what lacks name no one's mistake."""
    table = {
        section: {str(node.value.get("name")): node for node in config.value[section] if isinstance(node.value, dict)}
        for section in ("contexts", "clusters", "users")
    }
    known = f"expected one of {', '.join(sorted(table['contexts']))}" if table["contexts"] else "there is none"
    name = wanted or config.value.get("current-context")
    if not name:
        raise BadCluster(f"{file}: current-context: nothing found, {known} (--context names one, too)")
    if name not in table["contexts"]:
        raise BadCluster(f"{file}: contexts: no context {name!r}, {known}")
    context = table["contexts"][name].value.get("context")
    if not isinstance(context, dict):
        raise BadCluster(f"{file}: context {name!r}: no cluster found, expected one")
    cluster, user = table["clusters"].get(str(context.get("cluster"))), None
    if cluster is None or not isinstance(cluster.value.get("cluster"), dict):
        raise BadCluster(f"{file}: context {name!r}: cluster: no cluster {context.get('cluster')!r} found")
    server = cluster.value["cluster"].get("server")
    if not _is_address(str(server)):
        raise BadCluster(
            f"{file}: cluster {context['cluster']!r}: server: {server!r} found, expected https://HOST:PORT"
        )
    if context.get("user"):
        user = table["users"].get(str(context["user"]))
        if user is None or not isinstance(user.value.get("user"), dict):
            raise BadCluster(f"{file}: context {name!r}: user: no user {context['user']!r} found")
        plugin = user.value["user"].get("exec")
        if plugin is not None and not isinstance(plugin, dict):
            raise BadCluster(f"{file}: user {context['user']!r}: exec: {plugin!r} found, expected a command and more")
    return _Chosen(name, str(context.get("namespace") or "default"), cluster, user)


def _is_address(server: str) -> bool:
    """Whether a server's address can be used."""
    try:
        url = urllib3.util.parse_url(server)
    except urllib3.exceptions.LocationParseError:
        return False
    return url.scheme in ("https", "http") and bool(url.host)


def _run_plugin(context: str, user: Any, cluster: Any) -> dict[str, str]:
    """Return what a plugin for credentials says, as a user of a kubeconfig. Raises BadCluster."""
    from kubernetes.config.exec_provider import ExecProvider

    where = f"context {context!r}: exec {user.value['user']['exec'].get('command')!r}"
    folder = os.path.abspath(os.path.dirname(user.path or ""))
    try:
        status = _untyped(ExecProvider)(user["user"]["exec"], folder, cluster).run()
    except Exception as error:  # no such program, no JSON, or the library's own
        raise BadCluster(f"{where}: {one_line(error)}") from None
    if isinstance(status, dict) and status.get("token"):
        return {"token": status["token"]}
    if isinstance(status, dict) and status.get("clientCertificateData") and status.get("clientKeyData"):
        parts = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
        return {key: base64.b64encode(status[name].encode()).decode() for key, name in parts.items()}
    raise BadCluster(f"{where}: neither token nor certificate with key in what it printed")


def identity_of(host: str, authority: str | None) -> str:
    """Return what tells a cluster from others: a digest of its address and its certificate authority's file."""
    digest = hashlib.sha256(host.encode())
    if authority is not None:
        try:
            ssl.create_default_context(cafile=authority)  # raises where it holds no certificate
            digest.update(Path(authority).read_bytes())
        except OSError as error:  # an SSLError is one, too
            raise BadCluster(f"{authority}: {one_line(error)}, expected certificates") from None
    return digest.hexdigest()
