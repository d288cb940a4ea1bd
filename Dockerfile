# A base with Python 3.11 or newer and its venv module as python3; both stages need the same one.
ARG BASE=docker.io/library/python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/topodns
# The libraries have a layer of their own: they change less often than the code.
COPY constraints.txt pyproject.toml ./
RUN /opt/topodns/bin/pip install --no-compile -c constraints.txt setuptools \
 && /opt/topodns/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > dependencies.txt \
 && /opt/topodns/bin/pip install --no-compile -c constraints.txt -r dependencies.txt
COPY . .
RUN /opt/topodns/bin/pip install --no-compile -c constraints.txt --no-build-isolation . \
 && /opt/topodns/bin/pip uninstall -y setuptools pip \
 && python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /opt/topodns/lib

FROM ${BASE}
COPY --from=build /opt/topodns /opt/topodns
# Everything is compiled, and the root may be read-only: nothing is written when it runs.
ENV PATH=/opt/topodns/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 1053/udp 1053/tcp 9153/tcp
ENTRYPOINT ["topodns"]
