"""The tokenizer folder: takes the texts of the samples, writes a small byte-level BPE and a chat template."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 4096
END, PAD, TURN_START, TURN_END = "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
THINK = ("<think>", "</think>")

CHAT_TEMPLATE = """\
{#- ChatML: every turn is <|im_start|>role, a newline, the text, <|im_end|>, a newline. -#}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'These tools can be called, each described in JSON:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- 'To call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def write_tokenizer(texts: Iterable[str], folder: Path) -> Tokenizer:
    """Train on the texts and write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    # trim_offsets as in many published tokenizers: white space gets empty offsets, which is a trap worth having here.
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False) for token in (END, PAD, TURN_START, TURN_END)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(THINK),
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in THINK])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [TURN_START, TURN_END],
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_bytes((json.dumps(config, indent=2) + "\n").encode())
    (folder / "chat_template.jinja").write_bytes(CHAT_TEMPLATE.encode())
    return tokenizer
