"""How the values of topodns' annotations are written."""

from __future__ import annotations

# Unicode's White_Space, which Go trims, too. str.strip() alone would also strip the separators U+001C to U+001F.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_WHITE_SPACE += "\u2028\u2029\u202f\u205f\u3000"


def trimmed(text: str) -> str:
    """Return *text* without the white space around it, which never counts."""
    return text.strip(_WHITE_SPACE)
