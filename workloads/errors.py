"""One error for everything that can be wrong in a trace: it says where, and what to do."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace that cannot be read, or one row of it.

    ``file`` is the path as the user wrote it; ``line`` a line number, a step such as ``"#3"`` in files whose rows are not
    lines, or None for the file as a whole; ``field`` the field at fault or None; ``message`` what is wrong and what to do,
    parted by a semicolon. Its text is one line: ``file:line: field: message``.
    """

    def __init__(self, file: str, line: int | str | None, field: str | None, message: str) -> None:
        super().__init__(file, line, field, message)
        self.file = file
        self.line = line
        self.field = field
        self.message = message

    @property
    def where(self) -> str:
        """``file:line``, ``file#step`` or ``file``."""
        if self.line is None:
            return self.file
        return f"{self.file}{self.line}" if isinstance(self.line, str) else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        parts = (self.where, self.field, " ".join(self.message.split()))
        return ": ".join(part for part in parts if part)
