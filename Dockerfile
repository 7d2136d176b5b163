FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[all]"

FROM python:3.12-slim
RUN useradd --system --create-home --home-dir /var/lib/horarium horarium
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "horarium[all]" && rm -rf /wheels
USER horarium
WORKDIR /var/lib/horarium
VOLUME /var/lib/horarium
EXPOSE 8080
ENV HORARIUM_HOST=0.0.0.0 HORARIUM_STORE=sqlite:////var/lib/horarium/horarium.db
HEALTHCHECK CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=3)"
# Listening beyond loopback needs an API key: give HORARIUM_API_KEYS, or a file with HORARIUM_API_KEYS_FILE. Under
# another name than an address, it needs HORARIUM_ALLOWED_HOSTS. `docker stop` waits 10 s unless told otherwise, and a
# stop may take 30: docker run --stop-timeout 45, or stop_grace_period as in deploy/.
STOPSIGNAL SIGTERM
CMD ["horarium", "serve"]
