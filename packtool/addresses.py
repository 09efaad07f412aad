"""Addresses where a path belongs: refused with no more than their scheme, as they may hold a password or a signature.

What is shown of other people's words loses the secrets in it.
"""

import os
import re

from packtool.errors import Misuse

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")
_LOGIN = re.compile(r"\s*(//[^/\s]*@|[^\s/:@]+:[^\s/@]+@)")
"""``//me:password@host/...`` and ``me:password@host:...``."""


def address_in(name: str | os.PathLike[str]) -> str | None:
    """What may be said of a name that is an address, such as ``a https: address``; None for any other name."""
    text = os.fspath(name)
    if scheme := _SCHEME.match(text):
        return f"a {scheme[1]}: address"
    return "an address with a user's name" if _LOGIN.match(text) else None


def refuse_address(option: str, name: str | os.PathLike[str] | None) -> None:
    """Refuse an address as the value of ``option``, which takes a path.

    Raises:
        Misuse: it is one; the message does not show it.
    """
    if name is not None and (address := address_in(name)) is not None:
        raise Misuse(f"{option}: {address}, where a path of this machine is needed")


_SECRETS = (
    (re.compile(r"(?<=:/)(/*)[^/\s@]*@"), r"\1"),
    (re.compile(r"([^\s/:@'\"]+):(?!/)[^\s/@]+@"), r"\1:…@"),
    (re.compile(r"(\w:/+[^\s?]+)\?\S+"), r"\1?…"),
    (re.compile(r"(?i)\b(token|access_token|api_?key|password|passwd|secret|sig|signature)=[^\s&'\"]+"), r"\1=…"),
    (re.compile(r"\bhf_[A-Za-z0-9]{12,}"), "hf_…"),
)


def without_secrets(text: str) -> str:
    """A text from anywhere without passwords, signatures and tokens of the hub, as far as these can be told."""
    for secret, shown in _SECRETS:
        text = secret.sub(shown, text)
    return text
