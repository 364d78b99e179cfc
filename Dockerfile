# flexkvd in a container. docs/docker.md says how to run it: memlock, /dev/shm, IPC, GPUs.
#   docker build -t flexkvd .                                          for CPU
#   docker build -t flexkvd:cuda --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --build-arg EXTRAS=cuda .
# torch's default build is for CUDA; for the small one of a CPU host: --build-arg PIP_EXTRA_INDEX_URL=…, pip reads it.
ARG BASE=python:3.11-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE} AS base
# A CUDA base has no Python of its own; whatever release its distribution has is the right one.
# hadolint ignore=DL3008
RUN command -v python3 >/dev/null \
    || (apt-get update \
        && apt-get install --yes --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*)

FROM base AS build
ARG PIP_EXTRA_INDEX_URL=""
ARG EXTRAS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/flexkvd
WORKDIR /source
# torch first and alone: this layer stays cached while the code changes.
COPY constraints.txt .
RUN /opt/flexkvd/bin/pip install torch -c constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY flexkv_py flexkv_py
COPY tiers tiers
COPY service service
RUN /opt/flexkvd/bin/pip install ".${EXTRAS:+[$EXTRAS]}" -c constraints.txt

FROM base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="flexkvd" \
      org.opencontainers.image.description="KV cache for LLM serving: DRAM, SSD and S3 under one index" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# One fixed uid and gid, for workers in other containers to run as, and nobody else to read what is cached.
RUN groupadd --gid 10001 flexkv \
    && useradd --uid 10001 --gid flexkv --no-create-home --home-dir /var/lib/flexkvd --shell /usr/sbin/nologin flexkv \
    && install -d -o flexkv -g flexkv -m 0750 /run/flexkvd /var/lib/flexkvd \
    && install -d /etc/flexkvd
COPY --from=build /opt/flexkvd /opt/flexkvd
COPY service/docker/flexkvd.toml /etc/flexkvd/flexkvd.toml
ENV PATH=/opt/flexkvd/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME ["/run/flexkvd", "/var/lib/flexkvd"]
EXPOSE 7979
STOPSIGNAL SIGTERM
# Ready is healthy. A long read-in of a large SSD is no illness: failures of the first ten minutes do not count.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["flexkvd", "--healthy", "--config", "/etc/flexkvd/flexkvd.toml"]
ENTRYPOINT ["flexkvd"]
CMD ["--config", "/etc/flexkvd/flexkvd.toml"]
