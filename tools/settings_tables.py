"""The settings as tables in Markdown, as they are in docs/settings.md; tests compare the two."""

from __future__ import annotations

from horarium.server.config import ENV_PREFIX, Setting, table


def settings_table(*, of_doors: bool = False) -> str:
    """The table of settings in Markdown, as it is in docs/settings.md: everybody's, or those of doors."""
    lines = ["| setting | default | environment | flag | expected | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for s in table():
        if s.of_doors != of_doors:
            continue
        flag = f"`{s.flag}`" if s.flag else "none"
        cells = (f"`{s.name}`", _default_text(s), f"`{s.env}`", flag, s.expected, s.help)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def files_table() -> str:
    """The table of secrets that may be read from a file in Markdown, as it is in docs/settings.md."""
    lines = ["| setting | environment | flag | file that holds |", "| --- | --- | --- | --- |"]
    for s in table():
        if s.file_name:
            cells = (s.file_name, ENV_PREFIX + s.file_name.upper(), s.file_flag, s.name)
            lines.append("| " + " | ".join(f"`{cell}`" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default_text(setting: Setting) -> str:
    if setting.default is None or setting.default == ():
        return "none"
    if setting.is_switch:
        return f"`{str(setting.default).lower()}`"
    return f"`{','.join(setting.default)}`" if setting.is_list else f"`{setting.default}`"
