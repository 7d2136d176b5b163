"""`python manage.py test`: jobs are in memory, and no time passes."""

from django.test import TestCase

from horarium.testing import assert_enqueued, in_memory, perform, travel
from shop.jobs import confirm, scheduler
from shop.models import Order


class OrderTest(TestCase):
    """What becomes of an order."""

    def test_a_customer_is_written_to_once(self) -> None:
        with in_memory(scheduler):
            order = self.client.post("/orders", {"customer": "kim@example.com", "cents": 995}).json()["order"]
            assert_enqueued(scheduler, confirm, {"order": order}, count=1)
        self.assertEqual(perform(scheduler, confirm, {"order": order}), "kim@example.com")
        self.assertTrue(Order.objects.get(pk=order).confirmed)

    def test_there_is_a_report_every_night(self) -> None:
        with travel(scheduler, "2027-03-27T12:00+01:00") as clock:
            clock.advance("2d")
            self.assertEqual(clock.ran("nightly"), ["2027-03-28T00:15+01:00", "2027-03-29T00:15+02:00"])
            self.assertEqual(len(clock.runs("report")), 2)
