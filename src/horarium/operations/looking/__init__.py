"""Questions that write nothing: explanations, upcoming fire times, counts."""
