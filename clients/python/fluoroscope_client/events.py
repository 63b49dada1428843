"""Server-Sent Events, read as bytes arrive. Knows nothing of what the events say.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

from collections.abc import Iterator


class Events:
    """Lines end at LF, CR or CR LF and nowhere else: a text may hold U+2028, at which Python's
    own splitlines would cut it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._name, self._data = "", list[str]()

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """The events that are complete with this chunk, as (name, data).

        Raises UnicodeDecodeError: what follows cannot be trusted then.
        """
        text = self._rest + chunk
        # A CR at the end may be half of a line's end: it waits for what comes next.
        whole = text[:-1] if text.endswith(b"\r") else text
        lines = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + text[len(whole) :]
        for line in lines:
            if line:
                self._field(line.decode())
            else:
                if self._data:
                    yield self._name or "message", "\n".join(self._data)
                self._name, self._data = "", []

    def _field(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
