"""`LoadedModel`: a model's outline and its weights, read and checked, on their device, in the form that is wanted.

What is known of a model without its weights is `model_outline`'s.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

from chatcache.config import ServiceConfig
from chatcache.errors import ModelLoadError
from chatcache.first_sentence import first_sentence
from chatcache.library_calls import quiet_transformers
from chatcache.model_outline import ModelOutline, read_outline
from chatcache.out_of_memory import free_unused_memory, is_out_of_memory
from chatcache.told import Told
from chatcache.weights.form_choice import SAMPLE_TEXT_FILE, FormChoices, choose_form
from chatcache.weights.weight_form import apply_form
from storage.sentence import Sentence

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel(ModelOutline):
    """A causal chat model in eval mode on its device, with its weights in a form, and what was read before."""

    model: PreTrainedModel
    weights: str = "full"


def load_model(config: ServiceConfig, progress: Callable[[str], None] = lambda _line: None) -> LoadedModel:
    """The model that `config` names: its outline, then its weights. Raises what these two raise."""
    return load_weights(read_outline(config, progress), config, progress)


def load_weights(
    outline: ModelOutline, config: ServiceConfig, progress: Callable[[str], None] = lambda _line: None
) -> LoadedModel:
    """The model of this outline, with its weights. Raises ModelLoadError if they cannot be read; where memory runs out,
    what the allocator raises, for which see `out_of_memory`."""
    with quiet_transformers():
        form = config.weights
        if form == "auto":
            form = _auto_form(outline, config.data_dir / "models", progress)
        model = _load_in_form(outline, form)
    fields = {field.name: getattr(outline, field.name) for field in dataclasses.fields(ModelOutline)}
    return LoadedModel(**fields, model=model, weights=form)


def _read_weights(outline: ModelOutline) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            outline.folder,
            dtype=outline.dtype,
            device_map={"": outline.device} if outline.device.type != "cpu" else None,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # damaged files, a quantization whose package is missing: each has its own exception
        if is_out_of_memory(error):
            raise
        raise ModelLoadError(
            f"The weights of {outline.name} cannot be loaded: {first_sentence(error)} Copy or download the model again."
        ) from error
    model: PreTrainedModel = loaded[0]
    info: dict[str, Any] = loaded[1]
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelLoadError(
            f"The weights of {outline.name} lack {len(missing)} tensors ({missing[0]}, …). "
            "Copy or download the model again."
        )
    model.eval()
    return model


def _load_in_form(outline: ModelOutline, form: str) -> PreTrainedModel:
    model = _read_weights(outline)
    apply_form(model, form)
    return model


def _auto_form(outline: ModelOutline, models_dir: Path, progress: Callable[[str], None]) -> str:
    """The form chosen for this model earlier, or now, by measuring; "full" where no other can be faster."""
    if outline.device.type != "cpu" or outline.dtype != torch.bfloat16:
        return "full"
    choices = FormChoices(models_dir / "weight-forms.json")
    key = f"{outline.digest} torch-{torch.__version__}"
    choice = choices.get(key)
    if choice is None:
        sentence = f"Measuring, once, whether {outline.name} says the same with smaller weights …"
        progress(Sentence(sentence, Told.MEASURING_WEIGHTS, name=outline.name))
        token_ids = outline.tokenizer.encode(SAMPLE_TEXT_FILE.read_text("utf-8"))
        try:
            choice = choose_form(partial(_load_in_form, outline), token_ids)
        except (RuntimeError, ValueError, TypeError, AttributeError, MemoryError) as error:
            # A model that is used in none of these ways, or two of which do not fit into memory.
            logger.warning("Smaller weights could not be tried, the full ones are used. (%s)", first_sentence(error))
        if choice is None:
            free_unused_memory(outline.device)
            return "full"
        choices.put(key, choice)
    return choice.form
