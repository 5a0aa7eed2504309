"""Models for the tests: the embedded one, converted once for all runs, and a tiny random one made on the spot. And
databases. `conftest` registers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import browser, context, page, site
from databases import open_database
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from chatcache.cache.kinds import layer_types_of
from chatcache.checkpoint.model_files import locate_model
from chatcache.checkpoint.tokenizer_files import digest_of_tokenizer
from chatcache.config import EMBEDDED_MODEL, ServiceConfig
from chatcache.loader import LoadedModel, load_model
from chatcache.stats import Sampling
from chatcache.weights.weight_form import apply_form
from storage.database import Database

__all__ = ["browser", "context", "page", "site"]
"""Fixtures of the tests of the page."""

BUILD_DIR = Path(__file__).parent.parent / "build"
"""Ignored by git and kept between runs, so that the embedded model is converted once in a clone."""

TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TINY_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Numbers such as 1, 22, 333 and 4444; words such as cache, token, prompt and reply.",
    "user assistant system user assistant system\n\n",
    "Grüße, naïve café. 你好，世界。 こんにちは 🙂🙃",
]


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    """More threads than free cores make small models many times slower."""
    torch.set_num_threads(1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database in `tmp_path`."""
    with open_database(tmp_path) as database:
        yield database


@pytest.fixture(scope="session")
def test_data_dir() -> Path:
    """A data directory kept between runs, for converted models only; tests that write chats use `tmp_path`."""
    return BUILD_DIR / "test-data"


@pytest.fixture(scope="session")
def embedded_model_dir(test_data_dir: Path) -> Path:
    """The embedded model as a folder that `--model` takes."""
    return locate_model(EMBEDDED_MODEL, test_data_dir / "models", lambda _line: None).folder


@pytest.fixture(scope="session")
def embedded(test_data_dir: Path) -> LoadedModel:
    """The embedded model in float32, in which equal computations round equally enough to compare replies."""
    return load_model(ServiceConfig(data_dir=test_data_dir, device="cpu", dtype="float32"))


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on four lines, with a ChatML template: every text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=special[0],
        bos_token=special[1],
        eos_token=special[2],
        pad_token=special[2],
        chat_template=TINY_CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_llama(tiny_tokenizer: PreTrainedTokenizerFast) -> LoadedModel:
    """A random two-layer Llama with grouped-query attention, in float32, with a context of 2,048 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,  # the usual 0.02 gives logits so even that a rounding error picks the token
        bos_token_id=tiny_tokenizer.bos_token_id,
        eos_token_id=tiny_tokenizer.eos_token_id,
        pad_token_id=tiny_tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    apply_form(model, "full")
    return LoadedModel(
        model=model,
        layer_types=layer_types_of(config),
        num_token_ids=config.vocab_size,
        device=model.device,
        dtype=model.dtype,
        tokenizer=tiny_tokenizer,
        name="tiny-llama",
        digest="00" * 32,
        folder=Path(),
        tokenizer_digest=digest_of_tokenizer(tiny_tokenizer),
        max_context_tokens=2048,
        default_sampling=Sampling(
            temperature=0.7,
            top_p=0.9,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            max_new_tokens=64,
            stop=(),
        ),
        eos_token_ids=frozenset({tiny_tokenizer.eos_token_id}),
        chat_template=TINY_CHAT_TEMPLATE,
        notices=(),
    )
