"""What each strategy means, item by item, for people to read: slow, and right by looking."""

from packtool.packing import Packing

Segment = tuple[int, int, int]
"""(item, index of its first token in the item, tokens)"""


def best_fit_decreasing(lengths: list[int], max_length: int, max_segments: int | None) -> list[list[Segment]]:
    packs: list[list[Segment]] = []
    free: list[int] = []
    since: list[int] = []  # when each pack reached the free space that it has now
    longest_first = sorted(range(len(lengths)), key=lambda item: (-lengths[item], item))
    for now, item in enumerate(longest_first):
        fitting = [
            pack
            for pack in range(len(packs))
            if free[pack] >= lengths[item] and (max_segments is None or len(packs[pack]) < max_segments)
        ]
        if fitting:
            pack = min(fitting, key=lambda pack: (free[pack], since[pack]))
        else:
            pack = len(packs)
            packs.append([])
            free.append(max_length)
            since.append(now)
        packs[pack].append((item, 0, lengths[item]))
        free[pack] -= lengths[item]
        since[pack] = now
    return packs


def in_order(lengths: list[int], max_length: int, max_segments: int | None) -> list[list[Segment]]:
    packs: list[list[Segment]] = []
    free = 0
    for item, length in enumerate(lengths):
        if length > free or len(packs[-1]) == max_segments:
            packs.append([])
            free = max_length
        packs[-1].append((item, 0, length))
        free -= length
    return packs


def wrapped(lengths: list[int], max_length: int, max_segments: int | None) -> list[list[Segment]]:
    packs: list[list[Segment]] = []
    free = 0
    for item, length in enumerate(lengths):
        for token in range(length):
            if free == 0 or (token == 0 and len(packs[-1]) == max_segments):
                packs.append([])
                free = max_length
            if token == 0 or not packs[-1]:
                packs[-1].append((item, token, 0))
            item_, offset, so_far = packs[-1][-1]
            packs[-1][-1] = (item_, offset, so_far + 1)
            free -= 1
    return packs


def fewest_packs(lengths: list[int], max_length: int, max_segments: int | None) -> int:
    """The optimum, by trying everything."""
    best = len(lengths)

    def place(todo: list[int], packs: list[tuple[int, int]]) -> None:
        nonlocal best
        if len(packs) >= best:
            return
        if not todo:
            best = len(packs)
            return
        length, rest = todo[0], todo[1:]
        for index, (tokens, segments) in enumerate(packs):
            if tokens + length <= max_length and segments != max_segments:
                place(rest, [*packs[:index], (tokens + length, segments + 1), *packs[index + 1 :]])
        place(rest, [*packs, (length, 1)])

    place(sorted(lengths, reverse=True), [])
    return best


def pieces(
    masks: list[list[bool]], max_length: int, overlong: str
) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int, int, str]]]:
    """(doc, offset, length, trained) of pieces, (doc, offset, length, reason) of cuts; masks: what trains."""
    planned: list[tuple[int, int, int, int]] = []
    cuts: list[tuple[int, int, int, str]] = []

    def piece_or_cut(doc: int, start: int, stop: int) -> None:
        trained = sum(masks[doc][start + 1 : stop])
        if trained:
            planned.append((doc, start, stop - start, trained))
        else:
            cuts.append((doc, start, stop - start, "nothing_to_train"))

    for doc, mask in enumerate(masks):
        if not any(mask[1:]) or len(mask) <= max_length:
            piece_or_cut(doc, 0, len(mask))
        elif overlong == "split":
            for start in range(0, len(mask), max_length):
                piece_or_cut(doc, start, min(start + max_length, len(mask)))
        elif overlong == "truncate":
            piece_or_cut(doc, 0, max_length)
            cuts.append((doc, max_length, len(mask) - max_length, "truncated"))
        elif overlong == "truncate_turns" and (stop := last_turn_stop(mask, max_length)):
            piece_or_cut(doc, 0, stop)
            cuts.append((doc, stop, len(mask) - stop, "truncated"))
        else:
            cuts.append((doc, 0, len(mask), "overlong"))
    return planned, cuts


def last_turn_stop(mask: list[bool], max_length: int) -> int:
    """Where the last trained turn ends that fits and trains at all; 0 where there is none."""
    for stop in range(max_length, 1, -1):
        if mask[stop - 1] and not mask[stop]:
            return stop
    return 0


def as_lists(packing: Packing, lengths: list[int]) -> list[list[Segment]]:
    """A packing in the form the functions above give."""
    items = packing.items.tolist()
    offsets = [0] * len(items) if packing.offsets is None else packing.offsets.tolist()
    sizes = [lengths[item] for item in items] if packing.lengths is None else packing.lengths.tolist()
    segments = list(zip(items, offsets, sizes, strict=True))
    packs = []
    for count in packing.counts.tolist():
        packs.append(segments[:count])
        segments = segments[count:]
    assert not segments, "counts do not sum to the segments"
    return packs
