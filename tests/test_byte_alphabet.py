"""The byte alphabet is the one of ``tokenizers``."""

from tokenizers import pre_tokenizers

from packtool.byte_alphabet import BYTE_OF_LETTER


def test_every_character_is_spelled_in_the_letters_of_its_bytes() -> None:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for point in (*range(0x800), 0x2581, 0xFFFF, 0x1F600, 0x10FFFF):
        ((letters, _),) = byte_level.pre_tokenize_str(chr(point))
        assert bytes(BYTE_OF_LETTER[letter] for letter in letters) == chr(point).encode()


def test_every_byte_has_one_letter() -> None:
    assert sorted(BYTE_OF_LETTER.values()) == list(range(256))
    assert set(BYTE_OF_LETTER) == set(pre_tokenizers.ByteLevel.alphabet())
