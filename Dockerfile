FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[all]"

FROM python:3.12-slim
RUN useradd --system --uid 999 --create-home --home-dir /var/lib/horarium horarium
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "horarium[all]" && rm -rf /wheels
# By number, so that Kubernetes can tell that it is not root (`runAsNonRoot`).
USER 999:999
WORKDIR /var/lib/horarium
VOLUME /var/lib/horarium
EXPOSE 8080
ENV HORARIUM_HOST=0.0.0.0 HORARIUM_STORE=sqlite:////var/lib/horarium/horarium.db
# Finds the server by the settings here: another port, TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s CMD ["python", "-m", "horarium.server.healthcheck"]
# Listening beyond loopback needs an API key: give HORARIUM_API_KEYS, or a file with HORARIUM_API_KEYS_FILE. Under
# another name than an address, it needs HORARIUM_ALLOWED_HOSTS. `docker stop` waits 10 s unless told otherwise, and a
# stop may take 30: docker run --stop-timeout 45, or stop_grace_period as in deploy/.
STOPSIGNAL SIGTERM
CMD ["horarium", "serve"]
