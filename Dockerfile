# Skylark: name server, brokers and command line in one image. See docs/how-to/containers.md.
#
#   docker build --tag skylark .
#   docker run --read-only --tmpfs /tmp --volume skylark:/data \
#       --publish 9876:9876 --publish 10909:10909 --publish 10911:10911 skylark

FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY tools/metadata_hook.py tools/
COPY src src
# The environment is complete and compiled here: at run time nothing but /data is written to.
RUN python -m venv /opt/skylark && /opt/skylark/bin/pip install --no-cache-dir .

FROM python:3.12-slim
RUN groupadd --gid 10001 skylark && \
    useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home skylark && \
    install --directory --owner 10001 --group 10001 /data
COPY --from=build /opt/skylark /opt/skylark
ENV PATH=/opt/skylark/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 9876 10909 10911 10912 5557
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["skylark", "ping", "--quiet", "--timeout", "4s"]
ENTRYPOINT ["skylark"]
CMD ["up", "--host", "0.0.0.0", "--data", "/data"]
