"""The byte alphabet of byte-level vocabularies: which byte each of their letters stands for.

Of GPT-2 (Radford et al. 2019), and of nearly every vocabulary since.
"""


def _alphabet() -> dict[str, int]:
    # Bytes that print stand for themselves, the others for the characters from U+0100 on, in order.
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printing)
    return {chr(byte): byte for byte in printing} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF_LETTER = _alphabet()
