"""Settings: `HORARIUM` names the database that the orders are in, so that a run is part of an order's transaction."""

import os
from urllib.parse import parse_qsl, urlsplit

_url = urlsplit(os.environ.get("DATABASE_URL", "postgresql://localhost/shop"))

SECRET_KEY = "of an example"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["horarium.contrib.django", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path[1:],
        "USER": _url.username or "",
        "PASSWORD": _url.password or "",
        "HOST": dict(parse_qsl(_url.query)).get("host") or _url.hostname or "",
        "PORT": str(_url.port or ""),
    }
}
HORARIUM = {"DATABASE": "default", "PROGRAM": "shop"}
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = os.environ.get("MAILS", "mails")
