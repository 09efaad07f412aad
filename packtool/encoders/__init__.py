"""Encoders: texts in, ids out. ``tokenizers`` is the reference, and the proof of any that is faster.

They know nothing of records, spans that train, or tokens that packtool adds.
"""
