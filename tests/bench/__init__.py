"""How fast packtool is, held against what people use today: `make bench`, or `python -m tests.bench`.

No test depends on it, and it times nothing in a test. docs/benchmarks.md says what each line means.
"""
