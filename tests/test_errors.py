"""What text looks like when it is shown."""

import sys
import unicodedata

from packtool.errors import is_printable, one_line, printable

# Default_Ignorable_Code_Point of Unicode 16, DerivedCoreProperties.txt: first and last of each stretch.
DEFAULT_IGNORABLE = [
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
]


def test_nothing_that_a_reader_could_not_see_is_shown_as_it_is() -> None:
    for first, last in DEFAULT_IGNORABLE:
        for point in range(first, last + 1):
            assert printable(chr(point)).startswith("\\"), f"U+{point:04X}"
    assert printable("x\u034f\u115f\u2800y") == r"x\u034f\u115f\u2800y"


def test_letters_marks_and_pictures_are_shown_as_they_are() -> None:
    ignorable = {point for first, last in DEFAULT_IGNORABLE for point in range(first, last + 1)}
    for point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(point))[0] in "LMNPS" and point not in ignorable and point != 0x2800:
            assert is_printable(chr(point)), f"U+{point:04X}"
    for text in ("", "plain \\ text", "e\u0301 שלום 日本語 🙂 \u2801"):
        assert printable(text) == text


def test_what_is_shown_is_on_one_line_and_shown_again_as_it_is() -> None:
    shown = printable("".join(map(chr, range(0x3000))) + "\U000e0100\ud800")
    assert is_printable(shown)
    assert len(shown.splitlines()) == 1


def test_what_a_library_says_is_one_line_and_never_nothing() -> None:
    assert one_line(ValueError("bad\n\n  at 3:\tx ")) == "bad at 3: x"
    assert one_line(ValueError("x" * 1_000)) == "x" * 200
    assert one_line(ValueError(" \n")) == one_line(ValueError()) == "ValueError"
