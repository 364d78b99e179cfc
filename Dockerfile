# flexkvd on CPU. For a CPU build of torch pass --build-arg PIP_EXTRA_INDEX_URL=...; pip reads it itself.
FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/flexkv
WORKDIR /source
# torch first and alone: this layer stays cached while the code changes.
COPY constraints.txt .
RUN /opt/flexkv/bin/pip install torch -c constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY flexkv_py flexkv_py
COPY tiers tiers
COPY service service
RUN /opt/flexkv/bin/pip install . -c constraints.txt

FROM python:3.11-slim
COPY --from=build /opt/flexkv /opt/flexkv
ENV PATH=/opt/flexkv/bin:$PATH
# Workers must be able to reach the socket, and nobody else the data: one fixed uid and gid.
RUN groupadd --gid 10001 flexkv \
    && useradd --uid 10001 --gid flexkv --no-create-home --shell /usr/sbin/nologin flexkv \
    && install -d -o flexkv -g flexkv -m 0750 /run/flexkvd /var/lib/flexkvd /etc/flexkvd
USER flexkv
VOLUME ["/run/flexkvd", "/var/lib/flexkvd"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["flexkvd"]
CMD ["--config", "/etc/flexkvd/flexkvd.toml"]
