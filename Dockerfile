FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/horarium && /opt/horarium/bin/pip install --no-cache-dir ".[all]"

FROM python:3.12-slim
RUN useradd --system --uid 999 --no-create-home --home-dir /var/lib/horarium horarium \
    && install -d -m 0700 -o horarium -g horarium /var/lib/horarium
COPY --from=build /opt/horarium /opt/horarium
# By number, so that Kubernetes can tell that it is not root (`runAsNonRoot`).
USER 999:999
WORKDIR /var/lib/horarium
VOLUME /var/lib/horarium
EXPOSE 8080
# No store: left out it is horarium.db in this folder, and HORARIUM_STORE or HORARIUM_STORE_FILE name another.
ENV PATH=/opt/horarium/bin:$PATH HORARIUM_HOST=0.0.0.0
# Finds the server by the settings here: another port, TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s CMD ["python", "-m", "horarium.server.healthcheck"]
# Listening beyond loopback needs an API key: give HORARIUM_API_KEYS, or a file with HORARIUM_API_KEYS_FILE. Under
# another name than an address, it needs HORARIUM_ALLOWED_HOSTS. `docker stop` waits 10 s unless told otherwise, and a
# stop may take 30: docker run --stop-timeout 45, or stop_grace_period as in deploy/.
STOPSIGNAL SIGTERM
CMD ["horarium", "serve"]
