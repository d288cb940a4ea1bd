# SPDX-License-Identifier: Apache-2.0

"""The address of a cluster's API server, and the credentials for it: from a kubeconfig or a pod's service account.

Only this module and ``api_client`` import the official client; what reads for ``doctor`` imports its models. All calls
block: run them in threads.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import urllib3

from locator.cluster.file_version import version_of
from locator.cluster.responses import one_line

MAX_CONNECTIONS = 32  # in the pool: one for each watch, some for writes
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes mounts a pod's service account

# An idle watch learns nothing of an API server whose machine was replaced, or of a network that was cut. So the kernel
# asks IDLE seconds after the last packet, then each second, and gives the connection up after DEAD seconds; also if
# what it sent is not acknowledged for so long. To wait longer would be worse: while the network is cut, the API server
# sends its events again after 0.2 s, 0.4 s, 0.8 s and so on up to 2 min, so an old connection brings them as late after
# the cut as the cut was long. A new one brings them at once, and needs no list. This costs one packet in IDLE seconds
# for each watch, and one back. An API server that is stopped or busy still acknowledges.
KEEPALIVE_IDLE = 2
DEAD = 5


KUBECTL_HAS = "; 'kubectl config view --raw' prints the one that kubectl uses"

IN_FILES = ("certificate-authority", "client-certificate", "client-key")  # or in fields of that name with -data


class BadCluster(Exception):
    """The configuration of a cluster is wrong; the text names the file, the item, what was found and expected."""


class NoKubeconfig(BadCluster):
    """No kubeconfig was named, and there is none where kubectl looks for it."""


class Access(NamedTuple):
    """A configured client of the official library.

    ``identity`` is a digest of the address and the certificate authority. ``ca_file`` is the authority's file, None if
    TLS is not verified or the system's authorities are used. ``ca_version`` is what that file was when its certificates
    were loaded. ``complete`` is False if the credentials still have to come from an exec plugin, or the configuration
    could not be read: ``client`` is None then.
    """

    client: Any
    host: str
    namespace: str
    identity: str
    ca_file: str | None
    ca_version: tuple[int, ...]
    complete: bool

    @property
    def usable(self) -> bool:
        """Whether requests may use it: it is complete, and the authority's file is as it was loaded, or is gone."""
        return self.complete and _version(self.ca_file) in (self.ca_version, ())

    def authorization(self) -> dict[str, str]:
        """Return the Authorization header. The library reads a token file again every minute. Raises BadCluster."""
        headers: dict[str, str] = {}
        try:
            self.client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
        except Exception as error:  # the library passes on any error of its parts
            raise BadCluster(one_line(error)) from None
        return {key: value.strip() for key, value in headers.items()}


def no_access(file: str) -> Access:
    """Return what there is while the configuration in a file cannot be read."""
    return Access(None, file, "default", "", None, (), complete=False)


def _access(configuration: Any, namespace: str, *, complete: bool = True) -> Access:
    """Return a client of the library, which needs no file from now on. Raises BadCluster."""
    from kubernetes.client.api_client import ApiClient

    configuration.socket_options = _socket_options()
    configuration.connection_pool_maxsize = MAX_CONNECTIONS
    if not configuration.verify_ssl:  # the kubeconfig says so; the library would warn at each request
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    ca_file = configuration.ssl_ca_cert if configuration.verify_ssl else None
    client, ca_version = ApiClient(configuration), _version(ca_file)
    _share_tls(client.rest_client.pool_manager.connection_pool_kw)
    digest = hashlib.sha256(configuration.host.encode())
    if ca_file is not None:
        with _reading(ca_file, "certificates"):
            digest.update(Path(ca_file).read_bytes())
    return Access(client, configuration.host, namespace, digest.hexdigest(), ca_file, ca_version, complete)


def _version(file: str | None) -> tuple[int, ...]:
    """Return what differs whenever a file is written; empty if there is none."""
    try:
        return version_of(os.stat(file or ""))
    except OSError:
        return ()


def _share_tls(pool: dict[str, Any]) -> None:
    """Let all connections of a pool share one TLS context: each of its own takes a quarter of a megabyte.

    Raises BadCluster if its files cannot be read.
    """
    context = urllib3.util.ssl_.create_urllib3_context(cert_reqs=pool["cert_reqs"])
    authorities = {"cafile": pool["ca_certs"], "cadata": pool["ca_cert_data"]}
    if context.verify_mode == ssl.CERT_NONE:
        pass
    elif any(authorities.values()):
        with _reading(pool["ca_certs"], "certificates"):
            context.load_verify_locations(**authorities)
    else:
        context.load_default_certs()
    if pool["cert_file"]:
        with _reading(pool["cert_file"], "a certificate, and its key"):
            context.load_cert_chain(pool["cert_file"], pool["key_file"])
    pool.update(ssl_context=context, ca_certs=None, ca_cert_data=None, cert_file=None, key_file=None)


@contextmanager
def _reading(file: str, expected: str) -> Iterator[None]:
    """Turn errors of a file that should hold what is *expected* into BadCluster."""
    try:
        yield
    except OSError as error:  # SSLError is a subclass
        raise BadCluster(f"{file}: {one_line(error)}, expected {expected}") from None


def _socket_options() -> list[tuple[int, int, int]]:
    """Return the options of a TCP connection by which the kernel notices that its peer vanished."""
    from kubernetes.utils.keepalive import tcp_keepalive_socket_options

    options: list[tuple[int, int, int]] = tcp_keepalive_socket_options(KEEPALIVE_IDLE, 1, DEAD - KEEPALIVE_IDLE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; it also bounds the keepalive there
        options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD * 1000))
    return options


def _untyped(value: Any) -> Any:
    """Return *value* without its type: the library declares few types."""
    return value


def credentials_source(kubeconfig: str | None, context: str | None) -> _ServiceAccount | _Kubeconfig:
    """Return the source of credentials: a kubeconfig, or in a pod its service account if both arguments are None."""
    in_pod = kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    return _ServiceAccount() if in_pod else _Kubeconfig(kubeconfig, context)


class _ServiceAccount:
    """The service account of the pod that topodns runs in."""

    def access(self, *, run_plugin: bool) -> Access:
        """Return a client. Raises BadCluster."""
        del run_plugin  # a service account has none
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
    """One context of a kubeconfig, which may consist of several files."""

    def __init__(self, path: str | None, context: str | None) -> None:
        self._context = context
        self._paths = path or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        self._hint = "" if path else " (--kubeconfig or $KUBECONFIG names another)"

    def access(self, *, run_plugin: bool) -> Access:
        """Return a client; get its credentials from an exec plugin only if *run_plugin*. Raises BadCluster."""
        from kubernetes.client.configuration import Configuration
        from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

        files = [path for path in self._paths.split(os.pathsep) if path]
        if not any(Path(path).expanduser().exists() for path in files):
            missing = NoKubeconfig if self._hint else BadCluster
            raise missing(f"{self._paths}: no such file, expected a kubeconfig{self._hint}")
        try:
            merger = _untyped(KubeConfigMerger)(self._paths)
        except Exception as error:  # also any error for values of wrong types, which the library does not check
            raise BadCluster(f"{self._paths}: {_why_unreadable(error)}, expected a kubeconfig{KUBECTL_HAS}") from None
        context = _find_context(self._paths, merger.config, self._context)
        user: Any = context.user
        plugin = user.value["user"].get("exec") if user is not None else None
        persist = merger.save_changes  # an OpenID refresh token is valid only once, so the new one must be saved
        if plugin is not None:
            persist = None  # credentials from a plugin must not be saved
            cluster = context.cluster["cluster"]
            user.value["user"] = _run_plugin(context.name, user, cluster) if run_plugin else {}
        configuration = Configuration()
        try:
            with _in_files(merger.config, context) as config:
                # Without a base path, the library looks for files that a kubeconfig names beside it, as kubectl does.
                loader = _untyped(KubeConfigLoader)(
                    config, context.name, config_base_path=None, config_persister=persist
                )
                loader.load_and_set(configuration)
                return _access(configuration, context.namespace, complete=plugin is None or run_plugin)
        except Exception as error:
            why = one_line(error)
            if isinstance(error, OSError) and error.filename is not None:
                why = f"{error.filename}: {error.strerror}"
            raise BadCluster(f"{self._paths}: context {context.name!r}: {why}") from None


def _why_unreadable(error: Exception) -> str:
    """Return what the official library met in a kubeconfig. What it says itself may be about its own code."""
    if isinstance(error, OSError):
        return error.strerror or one_line(error)
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None:  # of YAML
        return f"line {mark.line + 1}: not YAML ({problem})"
    if "empty" in str(error):
        return "empty"
    if isinstance(error, (AttributeError, TypeError)):
        return "no clusters, contexts and users found"
    return one_line(error)


class _Context(NamedTuple):
    """A context of a kubeconfig; ``cluster`` and ``user`` are the official library's nodes."""

    name: str
    namespace: str
    cluster: Any
    user: Any


def _find_context(file: str, config: Any, name: str | None) -> _Context:
    """Return the context *name*, or the current one. Raises BadCluster: the library's own errors name no cause."""
    table = {
        section: {str(node.value.get("name")): node for node in config.value[section] if isinstance(node.value, dict)}
        for section in ("contexts", "clusters", "users")
    }
    if (kind := config.value.get("kind") or "Config") != "Config":
        raise BadCluster(f"{file}: kind: {kind} found, expected Config, as in a kubeconfig{KUBECTL_HAS}")
    if not table["contexts"]:
        raise BadCluster(f"{file}: contexts: there is none, expected a kubeconfig with clusters, contexts and users")
    known = f"expected one of {', '.join(sorted(table['contexts']))}"
    name = name or config.value.get("current-context")
    if not name:
        how = "(--context chooses one, too, or PATH#CONTEXT in --cluster and --federate)"
        raise BadCluster(f"{file}: current-context: nothing found, {known} {how}")
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
            raise BadCluster(
                f"{file}: user {context['user']!r}: exec: {plugin!r} found, expected a command, args and apiVersion"
            )
    return _Context(name, str(context.get("namespace") or "default"), cluster, user)


@contextmanager
def _in_files(config: Any, context: _Context) -> Iterator[Any]:
    """Yield *config* with one context, whose certificates and keys are in files until the block ends.

    Python's ``ssl`` reads them from files only. The library would write them, too, but keep each that it has written,
    so that those of renewed certificates would fill a pod's ``/tmp``. *config* itself stays as it is: it may be saved.
    """
    sections = {"clusters": ("cluster", context.cluster), "users": ("user", context.user)}
    value = {**config.value, **{section: [] for section in sections}}
    with ExitStack() as stack:
        folder = ""
        for section, (member, node) in sections.items():
            if node is None:
                continue
            fields = dict(node.value[member])
            for name in IN_FILES:
                data = fields.pop(f"{name}-data", None)
                if data:
                    folder = folder or stack.enter_context(tempfile.TemporaryDirectory())
                    fields[name] = _written(folder, f"{name}-data", str(data))
            value[section].append(type(node)(node.name, {**node.value, member: fields}, node.path))
        try:
            yield type(config)(config.name, value, config.path)
        except BadCluster as error:
            raise BadCluster(str(error).removeprefix(os.path.join(folder, ""))) from None


def _written(folder: str, field: str, data: str) -> str:
    """Return the path of a file with what a *field* of a kubeconfig contains. Raises BadCluster."""
    path = Path(folder, field)
    try:
        path.write_bytes(base64.b64decode("".join(data.split()), validate=True))
    except ValueError:
        raise BadCluster(f"{field}: no base64, expected that of a file in PEM") from None
    return str(path)


def _is_address(server: str) -> bool:
    """Whether *server* is an http or https URL with a host."""
    try:
        url = urllib3.util.parse_url(server)
    except urllib3.exceptions.LocationParseError:
        return False
    return url.scheme in ("https", "http") and bool(url.host)


def _run_plugin(context: str, user: Any, cluster: Any) -> dict[str, str]:
    """Run an exec plugin; return its credentials as the fields of a kubeconfig's user. Raises BadCluster."""
    from kubernetes.config.exec_provider import ExecProvider

    where = f"context {context!r}: exec {user.value['user']['exec'].get('command')!r}"
    folder = os.path.abspath(os.path.dirname(user.path or ""))
    try:
        status = _untyped(ExecProvider)(user["user"]["exec"], folder, cluster).run()
    except Exception as error:  # a missing program, invalid JSON, or an error of the library
        raise BadCluster(f"{where}: {one_line(error)}") from None
    if isinstance(status, dict) and status.get("token"):
        return {"token": status["token"]}
    if isinstance(status, dict) and status.get("clientCertificateData") and status.get("clientKeyData"):
        parts = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
        return {key: base64.b64encode(status[name].encode()).decode() for key, name in parts.items()}
    raise BadCluster(f"{where}: neither token nor certificate with key found in its output, expected one")
