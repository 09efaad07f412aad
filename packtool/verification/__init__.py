"""Verification: a packed dataset's folder in, a report of what it keeps and breaks of the data contract out.

One module a group of checks; ``checking`` goes through them in order.

    files       listing, kept_tokenizer, rules (the manifest against itself)
    packs       reading, packs, shard_pass: a row group at a time, shards side by side
    documents   reject_rows, stretches, documents, replanning, conservation: over sorted files on disk
    sources     origin, rendering_again: only where sources are given
"""

from packtool.verification.checking import verify
from packtool.verification.report import CHECKS, Check, VerifyReport

__all__ = ["CHECKS", "Check", "VerifyReport", "verify"]
