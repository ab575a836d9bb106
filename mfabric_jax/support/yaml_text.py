"""Read YAML as programs write it: block and flow mappings and lists, scalars, comments, one document.

Anchors, aliases, tags, directives, keys of several lines and several documents are refused, as is a key that appears
twice. Numbers, true, false and null are those of YAML's core schema; everything else is text. Source:
yaml.org/spec/1.2.2.
"""

import re
from typing import Any

from mfabric_jax.checks import InputError

DEEPEST = 100  # most levels of nested lists and mappings
KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'\[\]{},#|>@`%&*!?:-](?:[^#:]|:(?!\s|$)|(?<!\s)#)*?)\s*:(?=\s|$)"""
)
INTEGER = re.compile(r"[-+]?\d{1,19}")
NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
NOT_READ = {"&": "anchors", "*": "aliases", "!": "tags", "?": "keys of several lines", "%": "directives"}
RESERVED = "@`"
QUOTED = {'"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL), "'": re.compile(r"'((?:[^']|'')*)'", re.DOTALL)}
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4}|.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
BLOCK = re.compile(r"[|>][-+\d]{0,2}(\s+#.*)?")
PLAIN_IN_FLOW = re.compile(r"(?:[^,\[\]{}:#]|:(?![\s,\[\]{}]|$)|(?<!\s)#)+")
COMMENT = re.compile(r"(^|\s)#.*")
MARK = re.compile(r"(---|\.\.\.)(\s|$)")
DASH = re.compile(r"-(\s+|$)")


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raise `InputError` with the number of the line that is not read."""
    lines = _Lines(text)
    if not lines:
        return None
    value = _block(lines, 0)
    if lines:
        raise InputError(f"line {lines.number}: its indentation fits no line above it, got {lines.text!r:.80}.")
    return value


class _Lines:
    """The lines that are left: `indent`, `text` and `number` of the first. Empty lines and comments are skipped."""

    def __init__(self, text: str):
        self._raw = _one_document(text.splitlines())
        self.number, self.indent, self.text = 0, -1, ""
        self.step()

    def __bool__(self) -> bool:
        return self.indent >= 0

    def step(self) -> None:
        """Go to the next line that holds something."""
        while self.number < len(self._raw):
            line = self._raw[self.number]
            self.number += 1
            self.text = line.strip()
            if self.text and not self.text.startswith("#"):
                self.indent = len(line) - len(line.lstrip())
                if line[: self.indent].strip(" "):
                    raise InputError(f"line {self.number}: lines must be indented by spaces, got {line!r:.80}.")
                return
        self.indent, self.text = -1, ""

    def take_block(self, indent: int) -> str:
        """Return the lines below, indented by more than `indent`, as text, and go to the line after them."""
        taken: list[str] = []
        while self.number < len(self._raw):
            line = self._raw[self.number]
            if line.strip() and len(line) - len(line.lstrip()) <= indent:
                break
            taken.append(line.strip())
            self.number += 1
        self.step()
        return "\n".join(taken).strip("\n")

    def narrow(self, width: int) -> None:
        """Drop the first `width` characters of the line."""
        self.text = self.text[width:]
        self.indent += width


def _one_document(lines: list[str]) -> list[str]:
    """The lines with the marks of a document's start and end blanked. Raise `InputError` for a second document."""
    lines = list(lines)
    started = ended = False
    for nth, line in enumerate(lines):
        mark = MARK.match(line)
        if ended and not mark and line.strip() and not line.startswith("#"):
            raise InputError(f"line {nth + 1}: a file must hold one document, got {line.strip()!r:.80} after its end.")
        if mark and mark[1] == "---":
            if started:
                raise InputError(f"line {nth + 1}: a file must hold one document, got the start of another.")
            lines[nth] = line.replace("---", "   ", 1)
        elif mark:
            ended, lines[nth] = True, ""
        started = started or bool(line.strip() and not line.startswith("#"))
    return lines


def _block(lines: _Lines, depth: int) -> Any:
    """The value that begins at the first line that is left."""
    if depth > DEEPEST:
        raise InputError(f"line {lines.number}: it is nested more than {DEEPEST} deep.")
    if DASH.match(lines.text):
        return _list(lines, depth)
    if KEY.match(lines.text):
        return _mapping(lines, depth)
    return _scalar(lines, lines.indent - 1, lines.text)


def _list(lines: _Lines, depth: int) -> list[Any]:
    entries: list[Any] = []
    indent = lines.indent
    while lines.indent == indent and (dash := DASH.match(lines.text)):
        below = lines.text[dash.end() :]
        if below and not below.startswith("#"):
            if KEY.match(below) or DASH.match(below):
                lines.narrow(dash.end())
                entries.append(_block(lines, depth + 1))
            else:
                entries.append(_scalar(lines, indent, below))
        else:
            lines.step()
            entries.append(_block(lines, depth + 1) if lines.indent > indent else None)
    return entries


def _mapping(lines: _Lines, depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    indent = lines.indent
    while lines.indent == indent and (match := KEY.match(lines.text)):
        number, key = lines.number, _key(match[1])
        if key in values:
            raise InputError(f"line {number}: the key {key!r:.80} appears twice.")
        text = lines.text[match.end() :].strip()
        if text and not text.startswith("#"):
            values[key] = _scalar(lines, indent, text)
            continue
        lines.step()
        list_beside = lines.indent == indent and DASH.match(lines.text)
        values[key] = _block(lines, depth + 1) if lines.indent > indent or list_beside else None
    if lines.indent == indent and not DASH.match(lines.text):
        raise InputError(f"line {lines.number} must be KEY: VALUE, got {lines.text!r:.80}.")
    return values


def _key(text: str) -> str:
    return _unquote(text) if text[0] in QUOTED else text.strip()


def _scalar(lines: _Lines, indent: int, text: str) -> Any:
    """The scalar, flow list or flow mapping that begins with `text`; lines indented by more than `indent` go on."""
    number = lines.number
    if BLOCK.fullmatch(text):
        return lines.take_block(indent)
    if text[0] in NOT_READ or text[0] in RESERVED:
        what = NOT_READ.get(text[0], f"values that begin with {text[0]}")
        raise InputError(f"line {number}: {what} of YAML are not read, got {text!r:.80}.")
    quoted_or_flow = text[0] in "\"'[{"
    parts = [text if quoted_or_flow else COMMENT.sub("", text)]
    lines.step()
    while lines.indent > indent:
        if not quoted_or_flow and KEY.match(lines.text):
            raise InputError(f"line {lines.number}: a key must not stand below a value, got {lines.text!r:.80}.")
        parts.append(lines.text if quoted_or_flow else COMMENT.sub("", lines.text))
        lines.step()
    whole_text = " ".join(parts)
    if not quoted_or_flow:
        return _plain(whole_text)
    value, end = _flow(whole_text, 0, f"line {number}", 0)
    if COMMENT.sub("", whole_text[end:]).strip():
        raise InputError(f"line {number}: nothing may follow a value, got {whole_text[end:]!r:.80}.")
    return value


def _plain(text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) and len(text) < DEEPEST else text


def _unquote(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return ESCAPE.sub(_unescape, text[1:-1])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else ESCAPED.get(code, code)


def _flow(text: str, start: int, label: str, depth: int) -> tuple[Any, int]:
    """The value at `start` of a text in flow style, and where it ends."""
    start = _skip(text, start)
    first = text[start : start + 1]
    if depth > DEEPEST:
        raise InputError(f"{label}: it is nested more than {DEEPEST} deep.")
    if first in ("[", "{"):
        return _flow_list(text, start, label, depth) if first == "[" else _flow_mapping(text, start, label, depth)
    if first in QUOTED:
        quoted = QUOTED[first].match(text, start)
        if not quoted:
            raise InputError(f"{label}: a text in quotation marks must end, got {text[start:]!r:.80}.")
        return _unquote(quoted[0]), quoted.end()
    plain = PLAIN_IN_FLOW.match(text, start)
    if not plain or first in NOT_READ:
        raise InputError(f"{label}: a value is missing or not read, got {text[start:]!r:.80}.")
    return _plain(plain[0].strip()), plain.end()


def _flow_list(text: str, start: int, label: str, depth: int) -> tuple[list[Any], int]:
    entries: list[Any] = []
    start = _skip(text, start + 1)
    while text[start : start + 1] != "]":
        value, start = _flow(text, start, label, depth + 1)
        entries.append(value)
        start = _after(text, start, "]", label)
    return entries, start + 1


def _flow_mapping(text: str, start: int, label: str, depth: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    start = _skip(text, start + 1)
    while text[start : start + 1] != "}":
        key, start = _flow(text, start, label, depth + 1)
        start = _skip(text, start)
        if text[start : start + 1] != ":" or not isinstance(key, str) or key in values:
            raise InputError(f"{label}: a mapping must be {{KEY: VALUE, ...}}, each key once, got {text!r:.80}.")
        start = _skip(text, start + 1)
        empty = text[start : start + 1] in (",", "}")
        values[key], start = (None, start) if empty else _flow(text, start, label, depth + 1)
        start = _after(text, start, "}", label)
    return values, start + 1


def _after(text: str, start: int, end: str, label: str) -> int:
    """Where the next entry or the end stands."""
    start = _skip(text, start)
    if text[start : start + 1] == ",":
        return _skip(text, start + 1)
    if text[start : start + 1] != end:
        raise InputError(f"{label}: {end} or a comma is missing, got {text!r:.80}.")
    return start


def _skip(text: str, start: int) -> int:
    while text[start : start + 1] == " ":
        start += 1
    return start
