"""What is said where memory does not hold a model's weights: what they take, and what would take less."""

from __future__ import annotations

from chatcache.errors import ChatCacheError, ModelLoadError
from chatcache.memory.advice import WEIGHT_BITS
from chatcache.memory.model_config import load_model_config
from chatcache.memory.model_shape import ModelShape
from chatcache.memory.rehearsal import rehearse
from chatcache.model_outline import ModelOutline
from chatcache.out_of_memory import free_unused_memory, is_out_of_memory
from storage.byte_sizes import format_size


def explained(error: Exception, outline: ModelOutline, form: str) -> Exception:
    """What to raise for an `error` that loading the weights in this form met: a ModelLoadError where memory ran out,
    else the error itself."""
    if not is_out_of_memory(error):
        return error
    error.with_traceback(None)  # its frames hold what was loaded so far
    free_unused_memory(outline.device)
    try:
        shape = rehearse(load_model_config(str(outline.folder)), outline.dtype, outline.name)
    except (ChatCacheError, RuntimeError, MemoryError):  # a model without a plan, or no memory for this either
        shape = None
    refusal = ModelLoadError(no_memory_sentence(shape, outline.name, outline.device.type, form))
    refusal.__cause__ = error
    return refusal


def no_memory_sentence(shape: ModelShape | None, name: str, device_type: str, form: str) -> str:
    """For a model of this shape, where that is known."""
    is_small = device_type == "cpu" and form != "full"
    options = {
        "--device cpu": device_type != "cpu",
        "--dtype bfloat16": shape is not None and shape.dtype == "float32",
        "--weights full": is_small,
    }
    helpful = [option for option, helps in options.items() if helps]
    remedy = f"{', '.join(helpful)} or a smaller model" if helpful else "a smaller model"
    needed = "" if shape is None else f": its weights take {format_size(shape.weight_bytes)} in {shape.dtype}"
    if shape is not None and is_small:
        bits = WEIGHT_BITS.get(form, max(WEIGHT_BITS.values()))
        beside = format_size(int(shape.num_quantizable_parameters * bits / 8))
        needed += f", and up to {beside} more in a smaller form beside"
    return f"There is not enough memory for {name}{needed}. Close other programs, or choose {remedy}."
