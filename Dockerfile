FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[uvloop]"

FROM python:3.12-slim
RUN useradd --system --create-home --home-dir /var/lib/horarium horarium
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels horarium uvloop && rm -rf /wheels
USER horarium
WORKDIR /var/lib/horarium
VOLUME /var/lib/horarium
EXPOSE 8080
ENV HORARIUM_HOST=0.0.0.0 HORARIUM_STORE=sqlite:////var/lib/horarium/horarium.db
HEALTHCHECK CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=3)"
# Listening beyond loopback needs an API key: give HORARIUM_API_KEYS.
CMD ["horarium", "serve"]
