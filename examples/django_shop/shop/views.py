"""The pages."""

from datetime import date

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404

from horarium import NotFound
from horarium.contrib.django import scheduler
from shop.jobs import confirm, report
from shop.models import Order


@transaction.atomic
def buy(request: HttpRequest) -> JsonResponse:
    """Take an order. It exists if and only if its confirmation is enqueued."""
    order = Order.objects.create(customer=request.POST["customer"], cents=int(request.POST["cents"]))
    scheduler.enqueue_on_commit(confirm, {"order": order.pk})
    return JsonResponse({"order": order.pk}, status=201)


def show_order(request: HttpRequest, order: int) -> JsonResponse:
    """One order."""
    found = get_object_or_404(Order, pk=order)
    return JsonResponse({"customer": found.customer, "cents": found.cents, "confirmed": found.confirmed})


def show_report(request: HttpRequest) -> JsonResponse:
    """The report of today, which a worker makes meanwhile."""
    run = report.enqueue(day=date.today())
    try:
        scheduler.wait_for(run.id, timeout=10)
    except NotFound as error:
        raise Http404(error.message) from None
    return JsonResponse(scheduler.result(run))
