"""Horarium in the frameworks of programs: `contrib.django`, `contrib.starlette`. Each imports its framework; nothing
else imports them."""
