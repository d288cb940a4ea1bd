# SPDX-License-Identifier: Apache-2.0

# A base with Python 3.11 or newer (python3, with venv), sh, rm and cp. Two stages must use the same one.
ARG BASE=docker.io/library/python:3.13-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
# An image with cargo and a C compiler, for the native code. Its C library must not be newer than that of the base.
ARG RUST=docker.io/library/rust:1.98-slim-trixie@sha256:8ce659250d9f7783105e69af45d78c0b2308bf78bd5640182986944efe3a4579

FROM ${RUST} AS native
WORKDIR /src
COPY native .
RUN ./lock.sh && cargo build --release --locked

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/topodns
# The libraries get their own layer, because they change less often than the code.
COPY requirements.txt ./
RUN /opt/topodns/bin/pip install --no-compile --require-hashes -r requirements.txt
COPY . .
# topodns imports none of these, and they are most of what pip installs: the asyncio half of the official client,
# the libraries that only this half needs, the generated calls, the models of versions that doctor does not ask for, what
# cffi needs to compile, what rich needs for markdown, time zones, and tests. 'rm' fails if a file is missing.
ENV UNUSED_LIBRARIES="aiohappyeyeballs aiohttp aiohttp-retry aiosignal frozenlist markdown-it-py mdurl multidict propcache pycparser pygments tzdata yarl" \
    UNUSED_FILES="kubernetes/aio kubernetes/client/api kubernetes/client/models/v1[ab]*.py kubernetes/client/models/v2*.py */_tests */*/_tests */tests"
RUN --mount=from=native,source=/src/target/release,target=/native \
    /opt/topodns/bin/pip install --no-compile --no-deps --no-build-isolation . \
 && /opt/topodns/bin/pip uninstall -y setuptools setuptools-rust semantic-version $UNUSED_LIBRARIES pip \
 && (cd /opt/topodns/lib/python3*/site-packages && cp /native/libnative.so dnsserver/net/native.abi3.so && rm -r $UNUSED_FILES) \
 && python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /opt/topodns/lib \
 && /opt/topodns/bin/topodns version \
 && /opt/topodns/bin/python -c "import dnsserver.cli.reading.dumping, kubernetes.config.exec_provider, kubernetes.config.incluster_config, kubernetes.config.kube_config"

FROM ${BASE}
COPY --from=build /opt/topodns /opt/topodns
# Everything is compiled, so topodns writes nothing here: the root may be read-only.
ENV PATH=/opt/topodns/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="topodns" org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
EXPOSE 1053/udp 1053/tcp 8443/tcp 9153/tcp
ENTRYPOINT ["topodns"]
