"""The work. The module `jobs` of an app is imported when Django starts."""

from datetime import date, timedelta

from django.core.mail import send_mail
from django.db import transaction
from django.db.models import Sum

from horarium import Discard, RunContext, cron
from horarium.contrib.django import scheduler
from shop.models import Order


@scheduler.handler(retry={"attempts_max": 8}, timeouts={"execution_seconds": 30})
def confirm(run: RunContext, order: int) -> str:
    """Write to the customer, once: a run that is performed again finds the order confirmed."""
    with transaction.atomic():
        found = Order.objects.select_for_update().filter(pk=order).first()
        if found is None:
            raise Discard(f"there is no order {order}")
        if not found.confirmed:
            send_mail(f"Order {order}", f"Thank you. Reference: {run.id}", None, [found.customer])
            found.confirmed = True
            found.save()
    return found.customer


@scheduler.handler(priority=10)
def report(day: date) -> dict[str, int]:
    """Count the orders of a day."""
    orders = Order.objects.filter(day=day)
    return {"orders": orders.count(), "cents": orders.aggregate(sum=Sum("cents"))["sum"] or 0}


@scheduler.job(cron("15 0 * * *", timezone="Europe/Berlin"), overlap="skip")
def nightly(run: RunContext) -> None:
    """Have the report of yesterday made."""
    day = run.fire_at.date() - timedelta(days=1)
    report.with_options(unique_key=f"report of {day}").enqueue(day=day)
