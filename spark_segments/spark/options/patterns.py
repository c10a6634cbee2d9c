"""subscribePattern: translates Java's regular expressions, which the Kafka connector takes, to Python's syntax.

Syntax that both languages share passes unchanged. Java's special syntax is translated where it matters for the
characters of topic names. Syntax without a translation is refused by name.
"""

from __future__ import annotations

import re

from spark_segments.errors import InvalidOptionError

# Topic names are ASCII, so a Unicode class means its ASCII part.
_CLASSES = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r"\s",
    "ASCII": r"\x00-\x7f",
}
_CLASSES |= {
    "L": _CLASSES["Alpha"],
    "Lu": _CLASSES["Upper"],
    "Ll": _CLASSES["Lower"],
    "N": _CLASSES["Digit"],
    "Nd": _CLASSES["Digit"],
    "IsAlphabetic": _CLASSES["Alpha"],
    "IsLetter": _CLASSES["Alpha"],
    "IsLowercase": _CLASSES["Lower"],
    "IsUppercase": _CLASSES["Upper"],
    "IsDigit": _CLASSES["Digit"],
    "IsPunctuation": r"!-#%-*,-/:;?@\[-\]_{}",
    "javaLowerCase": _CLASSES["Lower"],
    "javaUpperCase": _CLASSES["Upper"],
    "javaLetter": _CLASSES["Alpha"],
    "javaDigit": _CLASSES["Digit"],
    "javaLetterOrDigit": _CLASSES["Alnum"],
}
_PROPERTY = re.compile(r"\\([pP])(?:\{(\w+)\}|(\w))")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_ESCAPES = {r"\z": r"\Z", r"\Z": r"\Z", r"\h": r"[ \t]", r"\H": r"[^ \t]", r"\e": r"\x1b"}
_REFUSED_ESCAPES = (r"\G", r"\R", r"\X", r"\N", r"\c", r"\v", r"\V")


def python_pattern(text: str) -> str:
    """The pattern in Python's syntax. Raises InvalidOptionError for syntax without a translation, ValueError for a text
    that is no pattern in either language.
    """
    out: list[str] = []
    inside = False  # of square brackets
    start = 0
    while start < len(text):
        piece, written, inside = _next(text, start, inside)
        out.append(written)
        start += len(piece)
    pattern = "".join(out)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(text) from error
    return pattern


def _next(text: str, start: int, inside: bool) -> tuple[str, str, bool]:
    """(next piece of `text`, its translation, whether a character class is open behind it)"""
    quoted = _QUOTED.match(text, start)
    if quoted:
        return quoted.group(), re.escape(quoted.group(1)), inside
    match = _PROPERTY.match(text, start)
    if match:
        return match.group(), _property(match, text, inside), inside
    if text[start] == "\\":
        piece = text[start : start + 2]
        if piece in _REFUSED_ESCAPES:
            raise _refusal(text, piece)
        if inside and piece in (r"\h", r"\e"):
            return piece, {r"\h": r" \t", r"\e": r"\x1b"}[piece], inside
        if text.startswith(r"\k<", start):
            name, _, _ = text[start + 3 :].partition(">")
            return rf"\k<{name}>", f"(?P={name})", inside
        return piece, piece if inside else _ESCAPES.get(piece, piece), inside
    if inside:
        if text[start] == "[":
            raise _refusal(text, "a character class within another")
        if text.startswith("&&", start):
            raise _refusal(text, "&&")
        return text[start], text[start], text[start] != "]"
    if text[start] == "[":
        # A closing bracket right behind the opening bracket, or behind ^, is a character of the class.
        opening = re.compile(r"\[\^?\]?").match(text, start)
        assert opening is not None
        return opening.group(), opening.group(), True
    if re.compile(r"\(\?<(?![=!])").match(text, start):
        return "(?<", "(?P<", inside
    return text[start], text[start], inside


def _property(match: re.Match[str], text: str, inside: bool) -> str:
    name = match.group(2) or match.group(3)
    members = _CLASSES.get(name) or _CLASSES.get(name.removeprefix("Is"))
    negated = match.group(1) == "P"
    if members is None or (negated and inside):
        raise _refusal(text, match.group())
    if inside:
        return members
    return f"[^{members}]" if negated else f"[{members}]"


def _refusal(text: str, piece: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"{piece} of Java's regular expressions has no translation",
        found=repr(text),
        hint="Use letters, digits and . _ -, which topic names consist of, as in [a-z]+\\..*",
    )
