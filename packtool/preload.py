"""Imported by the process that workers are forked from: what their tasks need is there, once for all of them.

Nothing here says what is wrong: a worker that misses something loads it itself, and its task tells.
"""

import gc
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import packtool
from packtool.encoders.fast import fast_encoder_name
from packtool.encoders.proven import make_ready
from packtool.head_start import TOLD
from packtool.tokenizer import find_tokenizer


def _load(name: str, fast: bool) -> None:
    make_ready(find_tokenizer(name), fast=fast and fast_encoder_name() is not None)


def _import() -> None:
    # Each is a module of the tasks: imported here, and not by every worker again.
    from packtool import assembly, tokenizing

    del assembly, tokenizing


if (told := os.environ.pop(TOLD, None)) is not None:
    asking, *what = json.loads(told)
    if asking != packtool.__file__:
        os._exit(1)  # another copy than that of the run, whose workers must not have it
    with suppress(Exception), ThreadPoolExecutor(1) as loading:  # most of loading leaves Python's lock to others
        loading.submit(_load, *what)
        _import()
    gc.freeze()  # collecting would copy what the workers share
