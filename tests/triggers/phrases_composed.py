"""More phrases as people write them, as in `phrases_as_people_write_them`: two rhythms in one, months as ranges, ends
of months, exceptions of rules, dates with slashes. Written by hand; Friday 2026-11-20 12:00 is now."""

from __future__ import annotations

# ruff: noqa: E501 - a phrase is one row

UTC = "UTC"

COMPOSED: list[tuple[str, str, str]] = [
    # two rhythms in one phrase
    ("every mon and wed at 6 pm and every sat at 9 am", UTC, "11-21 09:00, 11-23 18:00, 11-25 18:00, 11-28 09:00, ..."),
    ("every monday at 9am and every friday at 5pm", UTC, "11-20 17:00, 11-23 09:00, 11-27 17:00, ..."),
    ("mondays at 9am and fridays at 5pm", UTC, "11-20 17:00, 11-23 09:00, 11-27 17:00, 11-30 09:00, ..."),
    ("weekdays at 9am, weekends at 11am", UTC, "11-21 11:00, 11-22 11:00, 11-23 09:00, ..."),
    ("weekdays at 7:30 and on saturdays at 10:00", UTC, "11-21 10:00, 11-23 07:30, 11-24 07:30, ..."),
    ("mornings at 7 and evenings at 7", UTC, "11-20 19:00, 11-21 07:00, 11-21 19:00, ..."),
    ("every tuesday at noon, every thursday at 3pm", UTC, "11-24 12:00, 11-26 15:00, 12-01 12:00, ..."),
    ("every weekday at 18:00 and on the 1st of the month at 6:00", UTC, "11-20 18:00, 11-23 18:00, 11-24 18:00, ..."),
    ("every monday at 8am, every tuesday at 9am and every sunday at 10pm", UTC, "11-22 22:00, 11-23 08:00, 11-24 09:00, 11-29 22:00, ..."),
    ("every monday at 9am and every friday at 5pm in Europe/Berlin", UTC, "11-20 17:00, 11-23 09:00, 11-27 17:00, ... Europe/Berlin"),
    ("every monday and every thursday at 9am", UTC, "11-23 09:00, 11-26 09:00, 11-30 09:00, ..."),
    ("each monday and each friday at 06:00", UTC, "11-23 06:00, 11-27 06:00, 11-30 06:00, ..."),
    ("daily at 6am and every sunday at midnight", UTC, "11-21 06:00, 11-22 00:00, 11-22 06:00, 11-23 06:00, ..."),
    ("every 6 hours on weekends and every monday at 8am", UTC, "11-21 00:00, 11-21 06:00, 11-21 12:00, 11-21 18:00, 11-22 00:00, 11-22 06:00, 11-22 12:00, 11-22 18:00, 11-23 08:00, 11-28 00:00, ..."),
    # months as ranges, quarters
    ("every monday at 8am from january to march", UTC, "2027-01-04 08:00, 2027-01-11 08:00, ..."),
    ("every day at 9am from june to august", UTC, "2027-06-01 09:00, 2027-06-02 09:00, ..."),
    ("every weekday at 7am from november through february", UTC, "11-23 07:00, 11-24 07:00, ..."),
    ("daily at 6am between april and september", UTC, "2027-04-01 06:00, 2027-04-02 06:00, ..."),
    ("on the 1st from march to may at noon", UTC, "2027-03-01 12:00, 2027-04-01 12:00, 2027-05-01 12:00, 2028-03-01 12:00, ..."),
    ("mondays in q1 at 9am", UTC, "2027-01-04 09:00, 2027-01-11 09:00, ..."),
    ("mondays in q1", UTC, "2027-01-04 00:00, 2027-01-11 00:00, ..."),
    ("every friday in q2 and q3 at 4pm", UTC, "2027-04-02 16:00, 2027-04-09 16:00, ..."),
    ("first monday of each month from october to december at 10:00", UTC, "12-07 10:00, 2027-10-04 10:00, ..."),
    ("every hour on sundays in december", UTC, "12-06 00:00, 12-06 01:00, ..."),
    # two weeks
    ("fortnightly on thursday at 3pm", UTC, "11-26 15:00, 12-10 15:00, 12-24 15:00, ..."),
    ("every fortnight on monday at 7am", UTC, "11-23 07:00, 12-07 07:00, ..."),
    ("alternate fridays at 3pm", UTC, "11-20 15:00, 12-04 15:00, 12-18 15:00, ..."),
    ("every alternate monday at 10am", UTC, "11-23 10:00, 12-07 10:00, ..."),
    # the end of months, quarters and years
    ("end of month at 5pm", UTC, "11-30 17:00, 12-31 17:00, 2027-01-31 17:00, 2027-02-28 17:00, ..."),
    ("month end at 23:30", UTC, "11-30 23:30, 12-31 23:30, ..."),
    ("every month end at 18:00", UTC, "11-30 18:00, 12-31 18:00, ..."),
    ("at the end of every month at 5pm", UTC, "11-30 17:00, 12-31 17:00, ..."),
    ("at the end of each quarter at noon", UTC, "12-31 12:00, 2027-03-31 12:00, 2027-06-30 12:00, ..."),
    ("end of quarter at 6pm", UTC, "12-31 18:00, 2027-03-31 18:00, ..."),
    ("year end at 8am", UTC, "12-31 08:00, 2027-12-31 08:00, ..."),
    ("the last 3 days of every month", UTC, "11-28 00:00, 11-29 00:00, 11-30 00:00, 12-29 00:00, ..."),
    ("the last two days of the month at 6pm", UTC, "11-29 18:00, 11-30 18:00, 12-30 18:00, ..."),
    ("on the first 3 days of the month at 8am", UTC, "12-01 08:00, 12-02 08:00, 12-03 08:00, 2027-01-01 08:00, ..."),
    ("penultimate friday at 3pm", UTC, "11-20 15:00, 12-18 15:00, 2027-01-22 15:00, ..."),
    ("second to last friday of the month at 9am", UTC, "12-18 09:00, 2027-01-22 09:00, ..."),
    ("penultimate monday of january at 9am", UTC, "2027-01-18 09:00, 2028-01-24 09:00, ..."),
    # ends
    ("every friday at 4pm until the end of the year", UTC, "11-20 16:00, 11-27 16:00, 12-04 16:00, 12-11 16:00, 12-18 16:00, 12-25 16:00"),
    ("every monday at 9am until the end of december", UTC, "11-23 09:00, 11-30 09:00, 12-07 09:00, 12-14 09:00, 12-21 09:00, 12-28 09:00"),
    ("every sunday at 8pm until the end of 2026", UTC, "11-22 20:00, 11-29 20:00, 12-06 20:00, 12-13 20:00, 12-20 20:00, 12-27 20:00"),
    ("every tuesday at 9am before 2026-12-15", UTC, "11-24 09:00, 12-01 09:00, 12-08 09:00"),
    ("every friday at noon before christmas", UTC, "11-27 12:00, 12-04 12:00, 12-11 12:00, 12-18 12:00"),
    ("every day at 9am before december 1st at 9am", UTC, "11-21 09:00, 11-22 09:00, 11-23 09:00, 11-24 09:00, 11-25 09:00, 11-26 09:00, 11-27 09:00, 11-28 09:00, 11-29 09:00, 11-30 09:00"),
    ("every weekday at 9am before friday", UTC, "11-23 09:00, 11-24 09:00, 11-25 09:00, 11-26 09:00"),
    # rhythms from a time of day
    ("every 8 hours starting at 6am", UTC, "11-20 14:00, 11-20 22:00, 11-21 06:00, 11-21 14:00, ..."),
    ("every 12 hours starting at 7:30am", UTC, "11-20 19:30, 11-21 07:30, 11-21 19:30, ..."),
    ("every 30 minutes starting at 00:10", UTC, "11-20 12:10, 11-20 12:40, 11-20 13:10, ..."),
    # exceptions that are rules
    ("every monday at 9am except the first monday of the month", UTC, "11-23 09:00, 11-30 09:00, 12-14 09:00, 12-21 09:00, 12-28 09:00, 2027-01-11 09:00, ..."),
    ("every friday at noon except the last friday of december", UTC, "11-27 12:00, 12-04 12:00, 12-11 12:00, 12-18 12:00, 2027-01-01 12:00, ..."),
    ("every day at 6am except on the 1st of the month", UTC, "11-21 06:00, 11-22 06:00, 11-23 06:00, 11-24 06:00, 11-25 06:00, 11-26 06:00, 11-27 06:00, 11-28 06:00, 11-29 06:00, 11-30 06:00, 12-02 06:00, ..."),
    ("every 12 hours on mondays except the last monday of the month", UTC, "11-23 00:00, 11-23 12:00, 12-07 00:00, 12-07 12:00, ..."),
    # days
    ("each and every day at 9am", UTC, "11-21 09:00, 11-22 09:00, ..."),
    ("every single day at 8:30", UTC, "11-21 08:30, 11-22 08:30, ..."),
    ("all weekdays at 8:30", UTC, "11-23 08:30, 11-24 08:30, ..."),
    ("on each sunday at 18:00", UTC, "11-22 18:00, 11-29 18:00, ..."),
    ("mon wed fri 6pm", UTC, ""),
    ("every mon wed fri at 6pm", UTC, "11-20 18:00, 11-23 18:00, 11-25 18:00, ..."),
    ("every tue/thu at 5pm", UTC, "11-24 17:00, 11-26 17:00, ..."),
    ("twice a month on the 1st and the 15th at 9am", UTC, "12-01 09:00, 12-15 09:00, 2027-01-01 09:00, ..."),
    ("three times a week on monday, wednesday and friday at 7am", UTC, "11-23 07:00, 11-25 07:00, 11-27 07:00, ..."),
    ("at 2100 hours daily", UTC, "11-20 21:00, 11-21 21:00, ..."),
    # dates with slashes of which one number is no month
    ("24/12/2026 at 9am", UTC, "12-24 09:00"),
    ("on 12/24/2026 at 9am", UTC, "12-24 09:00"),
    ("every day at 9am until 30/11/2026", UTC, "11-21 09:00, 11-22 09:00, 11-23 09:00, 11-24 09:00, 11-25 09:00, 11-26 09:00, 11-27 09:00, 11-28 09:00, 11-29 09:00, 11-30 09:00"),
    ("today at 5pm", UTC, "11-20 17:00"),
]  # fmt: skip

ASKED: list[tuple[str, str]] = [
    ("every weekday at half past eight", "is it 8:30am or 8:30pm?"),
    ("every day at a quarter to six", "is it 5:45am or 5:45pm?"),
    ("evry tuesday", "did you mean 'every'?"),
    ("every wendesday at 9am", "did you mean 'wednesday'?"),
    ("every tusday at 9am", "did you mean 'tuesday'?"),
    ("every monthh on the 1st", "did you mean 'month'?"),
    ("evrey day at 9am", "did you mean 'every'?"),
    ("every day in febuary", "did you mean 'february'?"),
    ("5/6/2026 at 9am", "which is the month?"),
    ("31/31/2026 at 9am", "there is no such date"),
    ("at the end of the month at 5pm", "of each month, or of this one?"),
    ("every monday at 9am and every friday", "a second rhythm"),
    ("every monday at 9am and every friday at 5pm until christmas", "hold for both?"),
    ("every weekday at 9am except fridays and every saturday at 10am", "hold for both?"),
    ("every monday at 9am and every friday at 5pm in july", "hold for both?"),
    ("every monday at 9am in Europe/Berlin and every friday at 5pm", "time zone meant for both?"),
    ("every monday at 9am and friday at 5pm", ""),
    ("every hour starting at 7am", "on which day does it start?"),
    ("every 15 minutes before noon", "of which day?"),
    ("three times a week on monday and wednesday", "name each of the days"),
    ("the last 3 days at 9am", "days of what?"),
    ("today at 9am", "that is over today"),
]
