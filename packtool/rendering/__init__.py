"""Rendering: one record in, its text and the character spans that carry loss out. One module a kind of record.

Nothing here knows tokens, files or packs. A renderer never guesses: what it cannot render is a Refusal.
"""

from packtool.rendering.rendered import Rendered, Renderer

__all__ = ["Rendered", "Renderer"]
