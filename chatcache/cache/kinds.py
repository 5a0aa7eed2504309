"""The cache kinds: which fit a model on its device and why not, and how a cache of each kind is made or converted.

Layers are chosen by the layer types in the model's config, as the library does it, so hybrid, sliding and shared layers
of any architecture find theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs

from chatcache.cache.codecs import Codec, Fp8Codec, Int4Codec, Int8Codec
from chatcache.cache.hybrid_layer import HybridAppendLayer, HybridQuantizedLayer
from chatcache.cache.kind_settings import refusal_of_settings
from chatcache.cache.layers import AppendLayer
from chatcache.cache.offloaded_layer import OffloadedLayer, chain
from chatcache.cache.package_codecs import HqqCodec, QuantoCodec
from chatcache.cache.quantized_layer import QuantizedLayer
from chatcache.cache.session_cache import SessionCache
from chatcache.cache.workspace import Workspace
from chatcache.errors import UnsupportedOptionError
from chatcache.told import Told
from storage.sentence import Sentence

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_CODECS: dict[str, Callable[[], Codec]] = {
    "quantized-int8": Int8Codec,
    "quantized-int4": Int4Codec,
    "quantized-fp8": Fp8Codec,
    **{f"quantized-hqq{bits}": partial(HqqCodec, bits) for bits in HqqCodec.bits},
    **{f"quantized-quanto{bits}": partial(QuantoCodec, bits) for bits in QuantoCodec.bits},
}
_PACKAGES = {"hqq": "hqq", "quanto": "optimum-quanto"}
"""What a backend needs to be installed, by the backend's name."""
_OFFLOADED_KINDS = ("offloaded", "offloaded-non-sliding")
KINDS = ("dynamic", *_OFFLOADED_KINDS, *_CODECS, "static", "none")

_TOKEN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_HYBRID_LAYER_TYPES = frozenset({"hybrid", "hybrid_sliding"})
_ATTENTION_LAYER_TYPES = _TOKEN_LAYER_TYPES | _HYBRID_LAYER_TYPES
_NO_LAYER = "dummy"
_KNOWN_LAYER_TYPES = _ATTENTION_LAYER_TYPES | {"linear_attention", "conv", _NO_LAYER}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What decides which kinds fit: the layer types of the library's config, the device type ("cpu", "cuda", …), and
    the optional packages that are installed."""

    layer_types: tuple[str, ...]
    device_type: str
    packages: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KindFit:
    """One row of the table of kinds: `refusal` is why the kind cannot be had, None if it can."""

    kind: str
    refusal: str | None


def codec_of(kind: str) -> Codec | None:
    """What a kind keeps settled tokens with; None where they stay as they are."""
    return _CODECS[kind]() if kind in _CODECS else None


def facts_of(config: PreTrainedConfig, device_type: str) -> ModelFacts:
    """The facts of a model that need not be loaded."""
    return ModelFacts(layer_types_of(config), device_type, installed_packages())


def layer_types_of(config: PreTrainedConfig) -> tuple[str, ...]:
    """The library's type of each layer."""
    layer_types, _ = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    return tuple(layer_types)


def installed_packages() -> frozenset[str]:
    """The optional packages that are there. They are imported only when a cache needs one: that takes seconds."""
    modules = {"hqq": "hqq", "optimum-quanto": "optimum.quanto"}
    return frozenset(package for package, module in modules.items() if _is_there(module))


def table_of_kinds(facts: ModelFacts) -> tuple[KindFit, ...]:
    """Which kinds fit, in the order of `KINDS`."""
    return tuple(KindFit(kind, _refusal(kind, facts)) for kind in KINDS)


def resolve_kind(facts: ModelFacts, requested: str) -> str:
    """The kind that `requested` means for such a model; "auto" chooses. Raises UnsupportedOptionError with a reason."""
    if requested == "auto":
        return "dynamic"
    if (refusal := refusal_of_settings(requested)) is not None:
        raise UnsupportedOptionError(f"The cache kind {requested!r} cannot be had: {refusal}.")
    if requested not in KINDS:
        raise UnsupportedOptionError(f"There is no cache kind {requested!r}. Choose one of: auto, {', '.join(KINDS)}.")
    refusal = _refusal(requested, facts)
    if refusal is not None:
        raise UnsupportedOptionError(f"The cache kind {requested!r} cannot be used here: {refusal}. Choose auto.")
    return requested


def make_session_cache(model: PreTrainedModel, kind: str) -> SessionCache:
    """An empty cache of a resolved kind. Raises UnsupportedOptionError with the reason."""
    kind = resolve_kind(facts_of(model.config, model.device.type), kind)
    return SessionCache(kind, None if kind == "none" else partial(_make_layers, model, kind))


def convert_session_cache(cache: SessionCache, model: PreTrainedModel, kind: str) -> None:
    """Hold what `cache` holds in another kind, in place. Raises UnsupportedOptionError with the reason."""
    kind = resolve_kind(facts_of(model.config, model.device.type), kind)
    if "none" in (kind, cache.kind):
        raise UnsupportedOptionError("A cache of kind 'none' holds nothing, so nothing is converted to or from it.")
    cache.convert(kind, partial(_make_layers, model, kind))


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _refusal(kind: str, facts: ModelFacts) -> Sentence | None:
    """Why a model cannot have this kind, as a clause; None if it can."""
    if kind in _OFFLOADED_KINDS:
        return _refusal_to_offload(kind, facts)
    if kind == "static":
        return Sentence("preallocated caches are not available in this version", Told.NO_STATIC)
    if kind in _CODECS:
        if not _ATTENTION_LAYER_TYPES.intersection(facts.layer_types):
            why = "the model has no attention layers, so there are no keys and values to quantize"
            return Sentence(why, Told.NO_ATTENTION)
        backend = kind.removeprefix("quantized-").rstrip("0123456789")
        package = _PACKAGES.get(backend)
        if package is not None and package not in facts.packages:
            why = f"{package} is not installed (pip install --no-deps -r requirements-extra.txt)"
            return Sentence(why, Told.NO_PACKAGE, package=package)
        if unknown := sorted(set(facts.layer_types) - _KNOWN_LAYER_TYPES):
            layers = ", ".join(unknown)
            why = f"nothing is known about the model's layers of type {layers}"
            return Sentence(why, Told.UNKNOWN_LAYERS, layers=layers)
    return None


def _refusal_to_offload(kind: str, facts: ModelFacts) -> Sentence | None:
    if facts.device_type == "cpu":
        why = "offloading moves the cache to the computer's memory, and on a CPU it is there already"
        return Sentence(why, Told.OFFLOADED_ALREADY)
    if facts.device_type != "cuda":
        why = f"offloading needs an accelerator with memory of its own (cuda), which {facts.device_type} is not"
        return Sentence(why, Told.NO_DEVICE_MEMORY, device=facts.device_type)
    others = sorted(set(facts.layer_types) - {"full_attention"})
    if not others:
        why = "every layer has full attention; choose offloaded"
        return None if kind == "offloaded" else Sentence(why, Told.ALL_FULL_ATTENTION)
    if others != ["sliding_attention"] or "full_attention" not in facts.layer_types:
        layers = ", ".join(others)
        why = f"offloading needs layers with full attention; the model's others are {layers}"
        return Sentence(why, Told.OTHER_LAYERS, layers=layers)
    if kind == "offloaded":
        why = "the model has sliding layers, which would travel as a whole; choose offloaded-non-sliding"
        return Sentence(why, Told.SLIDING_LAYERS)
    return None


_WORKSPACES: WeakKeyDictionary[PreTrainedModel, Workspace] = WeakKeyDictionary()
"""One for each model: all its caches are used on one thread, one layer after the other."""


def _make_layers(model: PreTrainedModel, kind: str) -> list[Any]:
    """One layer for each of the model's: ours for attention, the library's own for all else."""
    types, all_kwargs = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    makers: dict[str, Callable[..., Any]] = dict(DYNAMIC_LAYER_TYPE_MAPPING)
    token_layer, hybrid_layer = _layer_makers(model, kind, shares_states=_NO_LAYER in types)
    makers |= dict.fromkeys(_TOKEN_LAYER_TYPES, token_layer) | dict.fromkeys(_HYBRID_LAYER_TYPES, hybrid_layer)
    if kind in _OFFLOADED_KINDS:
        makers["full_attention"] = partial(OffloadedLayer, model.device)
    layers = [makers[layer_type](**kwargs) for layer_type, kwargs in zip(types, all_kwargs, strict=True)]
    chain(layers)
    return layers


def _layer_makers(
    model: PreTrainedModel, kind: str, *, shares_states: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What makes an attention layer, and one with a recurrent state beside it."""
    codec = codec_of(kind)
    if codec is None:
        return AppendLayer, HybridAppendLayer
    # Layers that share keys and values hold on to what an earlier layer was given.
    workspace = None if shares_states else _WORKSPACES.setdefault(model, Workspace())
    arguments = (codec, model.dtype, workspace)
    return partial(QuantizedLayer, *arguments), partial(HybridQuantizedLayer, *arguments)
