"""The data."""

from django.db import models


class Order(models.Model):
    """One order. `confirmed`: its customer was written to."""

    id = models.BigAutoField(primary_key=True)
    customer = models.EmailField()
    cents = models.PositiveIntegerField()
    day = models.DateField(auto_now_add=True)
    confirmed = models.BooleanField(default=False)
