"""How packs look: one view a module, each from plain data to lines for a terminal, or to a page of HTML.

Nothing here reads a dataset or writes to a terminal. Text from the data goes through ``errors.printable``.
"""

from collections.abc import Iterator

from rich.text import Text

from packtool.inspection import Inspection
from packtool.views import mask as mask_view
from packtool.views import text as text_view
from packtool.views import tokens as tokens_view
from packtool.views.page import MASKED_STYLE, Page, wrapped, wrong


def lines(inspection: Inspection, page: Page, tokens: bool, mask: bool) -> Iterator[Text]:
    """Packs in the views that were asked for, in the one of the text where none was."""
    views = [mask_view.pack_mask] if mask else []
    if tokens:
        yield from tokens_view.legend(page)
        views.append(tokens_view.pack_tokens)
    elif not mask:
        yield from text_view.legend(page)
        views.append(text_view.pack_text)
    for fault in inspection.faults:
        yield Text()
        yield from wrong(page, fault)
    for pack in inspection.shown:
        for view in views:
            yield Text()
            yield from view(page, inspection, pack)
    yield Text()
    others = [name for name, given in (("--tokens", tokens), ("--mask", mask)) if not given]
    yield from wrapped(f"more: {', '.join([*others, '--random 3', '--html FILE.html'])}", page, MASKED_STYLE)
    yield Text(f"check everything: packtool verify {page.text(inspection.path)}", style=MASKED_STYLE)
