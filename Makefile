# Everything runs in .venv, which each target sets up as far as it needs; repeating a target is quick.

PYTHON ?= python3
BIN := .venv/bin
# A stamp is newer than pyproject.toml while what was installed still fits it.
RUN_STAMP := .venv/.installed-run
DEV_STAMP := .venv/.installed-dev

.PHONY: demo test soak lint bench pictures clean

demo: $(RUN_STAMP)
	@mkdir -p demo
	$(BIN)/packtool pack sample_data/text.jsonl -o demo/text -t sample_data/tokenizer -L 2048
	@echo
	$(BIN)/packtool pack sample_data/instructions.jsonl -o demo/instructions -t sample_data/tokenizer -L 2048
	@echo
	$(BIN)/packtool pack sample_data/chat.jsonl -o demo/chat -t sample_data/tokenizer -L 2048 --overlong truncate_turns
	@echo
	$(BIN)/packtool stats demo/text demo/instructions demo/chat

test: $(DEV_STAMP)
	$(BIN)/pytest -n auto -m "not soak"

soak: $(DEV_STAMP)
	$(BIN)/pytest --hypothesis-profile soak

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV_STAMP)
	$(BIN)/python -m tests.bench

pictures: $(DEV_STAMP)
	for script in docs/pictures/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv demo

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@ $(RUN_STAMP)
