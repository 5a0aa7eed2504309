"""Chat templates in the styles that models use, and tokenizers of the kinds they use, made on the spot."""

from __future__ import annotations

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

DEFAULT_SYSTEM = (
    """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"""
    + CHATML
)

LLAMA2 = """\
{%- if messages[0].role == 'system' %}
    {%- set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}{% set turns = messages[1:] %}
{%- else %}{% set system = '' %}{% set turns = messages %}{% endif %}
{%- for m in turns %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate.') }}{% endif %}
    {%- if m.role == 'user' %}{{ '<s>[INST] ' + (system if loop.first else '') + m.content.strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + m.content.strip() + ' </s>' }}{% endif %}
{%- endfor %}"""

LLAMA3 = """\
{{- '<s><|start|>system<|end|>\n\nToday is ' + strftime_now('%d %b %Y') + '\n\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}
{{- '<|eot|>' }}
{%- for m in messages %}{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|eot|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"""

GEMMA = """\
{{- '<s>' }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {{- '<|turn|>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<|eot|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>model\n' }}{% endif %}"""

MISTRAL = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}
{%- else %}{% set system = '' %}{% set turns = messages %}{% endif %}
{{- '<s>' }}
{%- for m in turns %}
    {%- if m.role == 'user' and loop.last and system %}{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}
    {%- elif m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}
    {%- else %}{{ ' ' + m.content + '</s>' }}{% endif %}
{%- endfor %}"""

DROPS_SYSTEM = """\
{%- for m in messages %}{% if m.role == 'user' %}{{ '### User:\n' + m.content + '\n' }}
{%- elif m.role == 'assistant' %}{{ '### Assistant:\n' + m.content + '</s>\n' }}{% endif %}{% endfor %}
{{- '### Assistant:\n' }}"""

_ANSWER_ONLY = "{% set text = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}"

QWEN3 = (
    "{%- for m in messages %}"
    + _ANSWER_ONLY
    + """{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"""
)
"""Thinks, drops thoughts from history, and writes an empty think block into the generation prompt when told not to."""

FORCED_THINKING = QWEN3[: QWEN3.index("\n{%- if enable_thinking")] + "{{ '<think>\n' }}"
"""The generation prompt opens the reasoning; history drops it."""

KEPT_THINKING = CHATML + "{{ '<think>\n' }}"
"""The generation prompt opens the reasoning; history keeps it."""

DROPS_LATE = """\
{%- for m in messages %}
    {%- set text = m.content if loop.index0 >= messages | length - 2 else m.content.split('</think>')[-1].strip() %}
    {{- '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}
{%- endfor %}{{ '<|im_start|>assistant\n' }}"""
"""Keeps the thoughts of the last reply and drops them one turn later."""

STYLES = {
    "chatml": CHATML,
    "default-system": DEFAULT_SYSTEM,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "drops-system": DROPS_SYSTEM,
    "qwen3": QWEN3,
    "kept-thinking": KEPT_THINKING,
}
"""Styles whose prompts only ever grow, as long as no reply has reasoning that they drop."""

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<|turn|>"]
CONTROL = [*SPECIAL, "[INST]", "[/INST]", "<think>", "</think>"]
"""Every token with a meaning to some model, `[INST]` as in Mistral's later tokenizers."""

_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. Hello world!\n\nHello there.",
    "user assistant system model think INST im_start im_end Today is 01 Jan 2026\n### User:\n### Assistant:\n",
    "def f(x):\n    return x + 1\n\n\tNumbers 1, 22, 333. Grüße, naïve café. 你好，世界。 こんにちは 🙂🙃",
] * 3


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3, Qwen. `<think>` is an added token that is not special, as Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return _wrapped(tokenizer, [*SPECIAL, "[INST]", "[/INST]"])


def sentence_piece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's: BPE over ▁, byte fallback, and a leading space that encoding adds and decoding strips."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    letters = [*SPECIAL[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(letters)) if ord(token[0]) < 0x3000}
    vocab = {token: i for i, token in enumerate(vocab)}
    merges = [tuple(pair) for pair in model["merges"] if {*pair, "".join(pair)} <= vocab.keys()]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(tokenizer, SPECIAL)


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """As newer SentencePiece conversions: Unigram, a leading space in front of the whole text only, byte fallback."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(
        _CORPUS,
        trainers.UnigramTrainer(vocab_size=180, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False),
    )
    pieces = json.loads(trained.to_str())["model"]["vocab"]
    pieces += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)] + [["\n", -6.0], ["\n\n", -6.0]]
    tokenizer = Tokenizer(models.Unigram([(t, s) for t, s in pieces], unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(tokenizer, [*SPECIAL, "[INST]", "[/INST]"])


def _wrapped(tokenizer: Tokenizer, special: list[str]) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


TOKENIZERS = {
    "byte-level": byte_level_tokenizer,
    "sentence-piece": sentence_piece_tokenizer,
    "metaspace": metaspace_tokenizer,
}
