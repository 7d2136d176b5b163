"""Services: the background loops. Each is a `step(now)`; the loop that calls it is in `loop/service.py`."""
