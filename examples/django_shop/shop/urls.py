"""The addresses."""

from django.urls import path

from shop import views

urlpatterns = [
    path("orders", views.buy),
    path("orders/<int:order>", views.show_order),
    path("report", views.show_report),
]
