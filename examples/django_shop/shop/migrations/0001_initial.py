"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("customer", models.EmailField(max_length=254)),
                ("cents", models.PositiveIntegerField()),
                ("day", models.DateField(auto_now_add=True)),
                ("confirmed", models.BooleanField(default=False)),
            ],
        ),
    ]
