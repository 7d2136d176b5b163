"""Services: what runs by itself. Each is a `step(now)`; the loop that calls it is in `loop/service.py`."""
