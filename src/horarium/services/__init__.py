"""Services: what runs by itself. Each is a `step(now)`; the loop that calls it is in `service.py`."""
