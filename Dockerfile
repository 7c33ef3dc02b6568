# Two images of one file: `docker build .` for web and workers, `docker build --build-arg LOCK=spark .` with Spark and a
# Java runtime for the pipeline as well.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
ARG LOCK=run
WORKDIR /build
COPY requirements/uv.txt requirements/${LOCK}.txt requirements/
RUN python -m venv /uv \
 && /uv/bin/pip install --no-cache-dir --require-hashes -r requirements/uv.txt \
 && python -m venv --without-pip /opt/doubledecker
ENV VIRTUAL_ENV=/opt/doubledecker
# What changes seldom first: a change of our code alone installs nothing else again.
RUN /uv/bin/uv pip sync --no-cache --require-hashes requirements/${LOCK}.txt
COPY pyproject.toml LICENSE ./
COPY docs/package.md docs/
COPY client client
COPY src src
RUN /uv/bin/uv pip install --no-cache --no-deps . ./client

FROM python:${PYTHON}
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/doubledecker doubledecker \
 && install -d -o doubledecker -g doubledecker /var/lib/doubledecker
COPY --from=build /opt/doubledecker /opt/doubledecker
ENV PATH=/opt/doubledecker/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DOUBLEDECKER_HOST=0.0.0.0 \
    DOUBLEDECKER_LOG_JSON=true
WORKDIR /var/lib/doubledecker
USER 10001
EXPOSE 17890
# Of web; the other commands serve no port, and compose.yaml has their checks.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:17890/livez', timeout=2)"]
ENTRYPOINT ["doubledecker"]
CMD ["web"]
