"""The labels of jobs, runs, calendars and channels."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from horarium.model.limits import LABEL_TEXT_MAX, LABELS_MAX

LabelText = Annotated[str, Meta(max_length=LABEL_TEXT_MAX)]
LabelName = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*(?!\n)$")]
Labels = Annotated[dict[LabelName, LabelText], Meta(max_length=LABELS_MAX)]
