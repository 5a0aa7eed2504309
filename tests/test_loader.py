import copy
import hashlib
import json
import pickle
import resource
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from gguf import GGMLQuantizationType, dequantize, quantize
from tiny_gguf import write_gguf
from tiny_models import save
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    LlamaForSequenceClassification,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    ViTConfig,
)

from chatcache.chat_template import DEFAULT_CHAT_TEMPLATE
from chatcache.checkpoint.file_digests import FileDigests
from chatcache.checkpoint.gguf_conversion import MANIFEST_NAME, PARTIAL_SUFFIX
from chatcache.checkpoint.model_files import locate_model
from chatcache.config import EMBEDDED_MODEL, ServiceConfig
from chatcache.errors import ModelLoadError, StorageError, UnsupportedOptionError
from chatcache.loader import LoadedModel, load_model
from chatcache.model_options import resolve_device, resolve_dtype
from chatcache.model_outline import sampling_of
from chatcache.stats import Sampling
from chatcache.weights.form_choice import FormChoice
from chatcache.weights.packed_linear import PackedHead

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, tiny_llama: LoadedModel) -> Path:
    """The tiny model as a folder of one's own."""
    return save(tiny_llama, tmp_path / "my-llama")


@pytest.fixture
def gguf_file(tmp_path: Path, tiny_llama: LoadedModel) -> Path:
    path = tmp_path / "Tiny.gguf"
    write_gguf(path, tiny_llama.model, tiny_llama.tokenizer)
    return path


def load(model: object, tmp_path: Path, lines: list[str] | None = None, **options: object) -> LoadedModel:
    config = ServiceConfig(model=str(model), data_dir=tmp_path / "data", device="cpu", **options)
    return load_model(config, lines.append if lines is not None else lambda _line: None)


def converted_folder(tmp_path: Path) -> Path:
    (folder,) = (path for path in (tmp_path / "data" / "models").iterdir() if path.is_dir())
    return folder


def logits(model: LoadedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.model(torch.tensor([[1, 50, 60, 70, 80, 90]])).logits


def edit_json(path: Path, **changes: object) -> None:
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


# ---------------------------------------------------------------- what is loaded


def test_the_embedded_model_is_a_chat_model_with_its_own_template(embedded: LoadedModel) -> None:
    assert embedded.name == EMBEDDED_MODEL
    assert embedded.max_context_tokens == 8192
    assert "<|im_start|>" in embedded.chat_template
    assert embedded.eos_token_ids == {embedded.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert embedded.notices == ()
    assert embedded.model.dtype == torch.float32
    assert not embedded.model.training
    assert embedded.default_sampling == Sampling(
        temperature=0.7, top_p=0.9, top_k=0, min_p=0.0, repetition_penalty=1.1, max_new_tokens=2048, stop=()
    )


def test_the_embedded_model_answers_a_question(embedded: LoadedModel) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = embedded.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = embedded.model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in embedded.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


def test_a_local_folder_is_loaded_as_it_was_saved(folder: Path, tmp_path: Path, tiny_llama: LoadedModel) -> None:
    loaded = load(folder, tmp_path)
    assert loaded.name == "my-llama"
    assert torch.equal(logits(loaded), logits(tiny_llama))
    assert loaded.chat_template == tiny_llama.chat_template
    assert loaded.max_context_tokens == 2048
    assert loaded.eos_token_ids == tiny_llama.eos_token_ids
    assert loaded.notices == ()


def test_a_gguf_file_computes_what_the_model_it_was_made_from_computes(
    gguf_file: Path, tmp_path: Path, tiny_llama: LoadedModel
) -> None:
    loaded = load(gguf_file, tmp_path)
    assert loaded.name == "Tiny"
    assert torch.equal(logits(loaded), logits(tiny_llama))
    assert loaded.chat_template == tiny_llama.chat_template
    assert loaded.tokenizer_digest == tiny_llama.tokenizer_digest, "its token ids mean the same"


def test_a_gguf_file_with_tensors_of_a_rarer_type_is_loaded(tmp_path: Path, tiny_llama: LoadedModel) -> None:
    path = tmp_path / "Tiny-Q5_0.gguf"
    write_gguf(path, tiny_llama.model, tiny_llama.tokenizer, GGMLQuantizationType.Q5_0)
    loaded = load(path, tmp_path, dtype="float32")
    rounded = copy.deepcopy(tiny_llama)
    with torch.no_grad():
        for weight in (each for each in rounded.model.parameters() if each.ndim == 2):
            codes = quantize(weight.numpy(), GGMLQuantizationType.Q5_0)
            weight.copy_(torch.from_numpy(dequantize(codes, GGMLQuantizationType.Q5_0)).to(torch.bfloat16))
    assert torch.equal(logits(loaded), logits(rounded))
    assert not torch.equal(logits(loaded), logits(tiny_llama))


def test_a_gguf_file_with_tensors_of_an_unknown_type_names_what_to_take_instead(
    gguf_file: Path, tmp_path: Path
) -> None:
    data = bytearray(gguf_file.read_bytes())
    name = b"token_embd.weight"
    type_at = data.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions and the two of them
    data[type_at : type_at + 4] = (99).to_bytes(4, "little")
    gguf_file.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"cannot be converted: .*99.* such as Q8_0"):
        load(gguf_file, tmp_path)


def test_a_model_without_a_template_gets_the_plain_one_and_says_so(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    loaded = load(folder, tmp_path)
    assert loaded.chat_template == DEFAULT_CHAT_TEMPLATE
    assert len(loaded.notices) == 1
    assert "no chat template" in loaded.notices[0]
    assert loaded.default_sampling.stop == ("\nUser:",), "the plain template has no end token"


def test_of_several_templates_the_default_one_is_taken(folder: Path, tmp_path: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ 'tools' }}")
    loaded = load(folder, tmp_path)
    assert isinstance(loaded.tokenizer.chat_template, dict)
    assert loaded.chat_template == loaded.tokenizer.chat_template["default"]


def test_end_tokens_come_from_every_file_that_names_one(folder: Path, tmp_path: Path) -> None:
    edit_json(folder / "config.json", eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load(folder, tmp_path).eos_token_ids == {2, 5, 7, 9}


# ---------------------------------------------------------------- digests


def test_the_digest_follows_config_and_weights_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    first = load(folder, tmp_path)
    edit_json(folder / "generation_config.json", temperature=0.5)
    assert load(folder, tmp_path).digest == first.digest
    edit_json(folder / "config.json", max_position_embeddings=1024)
    other_config = load(folder, tmp_path).digest
    assert other_config != first.digest
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert load(folder, tmp_path).digest not in (first.digest, other_config)


def test_the_tokenizer_digest_follows_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    first = load(folder, tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert load(copy, tmp_path).tokenizer_digest == first.tokenizer_digest
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[100:102]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load(copy, tmp_path).tokenizer_digest != first.tokenizer_digest


def test_the_digest_of_a_large_file_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, memory = tmp_path / "large.bin", tmp_path / "digests.json"
    large.write_bytes(b"a" * 100)
    read: list[Path] = []
    real = hashlib.file_digest
    monkeypatch.setattr("hashlib.file_digest", lambda file, name: read.append(file.name) or real(file, name))
    first = FileDigests(memory, always_read_bytes=10).sha256(large)
    assert FileDigests(memory, always_read_bytes=10).sha256(large) == first
    assert len(read) == 1
    large.write_bytes(b"b" * 100)
    assert FileDigests(memory, always_read_bytes=10).sha256(large) != first
    memory.write_text("[broken")
    assert FileDigests(memory, always_read_bytes=10).sha256(large) != first
    assert len(read) == 3


@pytest.mark.parametrize("entry", ["x", [], {"sha256": "0"}, None, "stamp only"])
def test_a_memory_of_digests_that_holds_anything_else_costs_time_only(tmp_path: Path, entry: object) -> None:
    large, memory = tmp_path / "large.bin", tmp_path / "digests.json"
    large.write_bytes(b"a" * 100)
    expected = FileDigests(memory, always_read_bytes=10).sha256(large)
    known = json.loads(memory.read_text())
    known[str(large)] = {"stamp": known[str(large)]["stamp"]} if entry == "stamp only" else entry
    memory.write_text(json.dumps(known))
    assert FileDigests(memory, always_read_bytes=10).sha256(large) == expected


def test_a_small_file_is_read_every_time(tmp_path: Path) -> None:
    path, memory = tmp_path / "small.bin", tmp_path / "digests.json"
    path.write_bytes(b"a")
    FileDigests(memory).sha256(path)
    assert not memory.exists()


# ---------------------------------------------------------------- conversion of GGUF files


def test_a_conversion_happens_once_and_says_so(gguf_file: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    load(gguf_file, tmp_path, lines)
    assert any(line.startswith("Converting Tiny.gguf") for line in lines)
    weights = converted_folder(tmp_path) / "model.safetensors"
    before, lines[:] = weights.stat().st_ino, []
    load(gguf_file, tmp_path, lines)
    assert lines == []
    assert weights.stat().st_ino == before


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + " ")


def claim_another_format(folder: Path) -> None:
    edit_json(folder / MANIFEST_NAME, format=0)


DAMAGE = {
    "truncated weights": truncate,
    "one flipped bit": flip_a_bit,
    "edited tokenizer": edit_the_tokenizer,
    "missing config": lambda folder: (folder / "config.json").unlink(),
    "killed before the manifest": lambda folder: (folder / MANIFEST_NAME).unlink(),
    "half a manifest": lambda folder: (folder / MANIFEST_NAME).write_text('{"format": 1, "fi'),
    "a manifest of something else": lambda folder: (folder / MANIFEST_NAME).write_text("[]"),
    "another version's": claim_another_format,
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damage, id=name, marks=() if name in ("one flipped bit", "empty folder") else pytest.mark.slow)
        for name, damage in DAMAGE.items()
    ],
)
def test_a_damaged_conversion_is_done_again(damage, gguf_file: Path, tmp_path: Path) -> None:
    first = load(gguf_file, tmp_path)
    expected = logits(first)  # now: its weights are a map of the file that is damaged next
    damage(converted_folder(tmp_path))
    lines: list[str] = []
    again = load(gguf_file, tmp_path, lines)
    assert torch.equal(logits(again), expected)
    assert again.digest == first.digest, "what was saved with the first conversion still fits"
    assert any("converted again" in line for line in lines)


def test_what_killed_conversions_left_behind_is_removed_whichever_model_it_was(gguf_file: Path, tmp_path: Path) -> None:
    load(gguf_file, tmp_path)
    folder = converted_folder(tmp_path)
    partial = folder.with_name(f"{folder.name}{PARTIAL_SUFFIX}")
    other, in_the_making = (folder.with_name(f"{name}{PARTIAL_SUFFIX}") for name in ("Q.1-00ff", "Q.2-00ff"))
    folder.rename(partial)
    for each in (other, in_the_making):
        each.mkdir()
    (partial / "leftover").write_text("x")
    folder.with_name(f"Q.3-00ff{PARTIAL_SUFFIX}").write_text("what cannot be removed as a folder stops no start")
    with FileLock(in_the_making.with_suffix(".lock")):
        load(gguf_file, tmp_path)
    assert not partial.exists()
    assert not other.exists()
    assert in_the_making.exists(), "another process is at it"
    assert not (folder / "leftover").exists()


def test_a_full_disk_leaves_nothing_and_the_conversion_can_be_tried_again(gguf_file: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match="Make room"):
            load(gguf_file, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path for path in (tmp_path / "data" / "models").iterdir() if path.is_dir()] == []
    load(gguf_file, tmp_path)


def test_two_starts_at_once_convert_once(gguf_file: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    loaded: list[LoadedModel] = []
    threads = [threading.Thread(target=lambda: loaded.append(load(gguf_file, tmp_path, lines))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 2
    assert sum(line.startswith("Converting") for line in lines) == 1


def test_a_gguf_file_with_other_content_is_another_conversion(gguf_file: Path, tmp_path: Path) -> None:
    first = load(gguf_file, tmp_path)
    data = bytearray(gguf_file.read_bytes())
    data[-1] ^= 1
    gguf_file.write_bytes(data)
    assert load(gguf_file, tmp_path).digest != first.digest


# ---------------------------------------------------------------- what is refused


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "lla')


def become_encoder_decoder(folder: Path) -> None:
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(folder)


def become_vision_model(folder: Path) -> None:
    ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(folder)


def become_masked_model(folder: Path) -> None:
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(**sizes, intermediate_size=16)).save_pretrained(folder)


def become_classifier(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config_class = LlamaForSequenceClassification.config_class
    LlamaForSequenceClassification(config_class(**config)).save_pretrained(folder)


def lose_some_tensors(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)


def ask_for_own_code(folder: Path) -> None:
    code = f"import pathlib; pathlib.Path({str(folder / 'executed')!r}).touch()\n"
    (folder / "modeling_own.py").write_text(code)
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    edit_json(folder / "config.json", model_type="own", auto_map=names)


class _TouchesWhenUnpickled:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def hide_code_in_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(_TouchesWhenUnpickled(folder / "executed"), file)


def name_a_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}})
    )


def break_the_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("[]")


REFUSED = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "broken config": (break_config, "config.json"),
    "unknown architecture": (lambda f: edit_json(f / "config.json", model_type="nosuch"), "nosuch"),
    "no architecture": (lambda f: edit_json(f / "config.json", model_type=None), "config.json"),
    "code of its own": (ask_for_own_code, "without code of its own"),
    "encoder-decoder": (become_encoder_decoder, "encoder-decoder"),
    "vision": (become_vision_model, "no causal language model of the type vit"),
    "masked language model": (become_masked_model, "not those of a causal language model"),
    "classifier": (become_classifier, "not those of a causal language model"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    "missing shard": (name_a_missing_shard, "lacks model-00001-of-00002.safetensors"),
    "broken index": (break_the_index, "model.safetensors.index.json cannot be read"),
    "truncated weights": (truncate, "weights of my-llama cannot be loaded"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "weights of my-llama cannot be loaded"),
    "weights of another shape": (lambda f: edit_json(f / "config.json", intermediate_size=99), "cannot be loaded"),
    "missing tensors": (lose_some_tensors, "lack 9 tensors"),
    "code in pickled weights": (hide_code_in_pickled_weights, "weights of my-llama cannot be loaded"),
    "no tokenizer": (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "tokenizer of my-llama"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer of my-llama"),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_cannot_chat_is_refused_with_the_reason(change, says: str, folder: Path, tmp_path: Path) -> None:
    change(folder)
    with pytest.raises(ModelLoadError) as caught:
        load(folder, tmp_path)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert message.endswith(".")
    assert not (folder / "executed").exists(), "code of the model ran"


def test_a_gguf_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"not a model" * 100)
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        load(path, tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        load(path, tmp_path)


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.999])
def test_a_gguf_that_was_cut_off_is_refused_before_it_is_converted(
    kept: float, gguf_file: Path, tmp_path: Path
) -> None:
    data = gguf_file.read_bytes()
    gguf_file.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ModelLoadError, match="Download it again"):
        load(gguf_file, tmp_path)


@pytest.mark.parametrize("name", ["./nosuch", "/no/such/folder", "~/no/such", "nosuch.gguf", "a/b/c"])
def test_a_path_that_does_not_exist_is_not_looked_for_on_the_hub(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="There is no folder or file"):
        load(name, tmp_path)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="No model is named"):
        load(name, tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x")
    with pytest.raises(ModelLoadError, match=r"folder that holds the model's config\.json"):
        load(path, tmp_path)


def test_an_embedded_model_that_is_not_installed_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatcache.checkpoint.model_files.EMBEDDED_PACKAGE", "no_such_package")
    with pytest.raises(ModelLoadError, match="make setup"):
        load(EMBEDDED_MODEL, tmp_path)


def test_a_data_directory_that_cannot_be_written_is_told(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="--data-dir"):
        load(gguf_file, tmp_path)


# ---------------------------------------------------------------- options


def test_a_weight_form_that_is_not_offered_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOptionError, match="int3"):
        load(folder, tmp_path, weights="int3")


def test_small_weights_are_offered_on_a_cpu_only(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatcache.model_outline.resolve_device", lambda _requested: torch.device("cuda"))
    with pytest.raises(UnsupportedOptionError, match=r"int8.* on a CPU only"):
        load(folder, tmp_path, weights="int8")


@pytest.mark.parametrize("form", ["full", "int8", "int4"])
def test_a_model_has_the_weight_form_that_was_asked_for(form: str, folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, tmp_path, weights=form)
    assert loaded.weights == form
    assert isinstance(loaded.model.get_output_embeddings(), PackedHead) is (form != "full")


def test_auto_keeps_full_weights_where_small_ones_are_not_faster(folder: Path, tmp_path: Path) -> None:
    assert load(folder, tmp_path, dtype="float32").weights == "full"


def test_auto_measures_once_and_remembers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def choose(_load: object, token_ids: list[int]) -> FormChoice:
        measured.append(len(token_ids))
        return FormChoice("int8", {"int8": 1.0}, {"int8": 0.001})

    monkeypatch.setattr("chatcache.loader.choose_form", choose)
    assert [load(folder, tmp_path, dtype="bfloat16").weights for _ in range(2)] == ["int8", "int8"]
    assert len(measured) == 1
    assert measured[0] > 1000


def test_a_model_on_which_smaller_weights_cannot_be_tried_keeps_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatcache.loader.choose_form", lambda *_: int("no number"))
    assert load(folder, tmp_path, dtype="bfloat16").weights == "full"


def test_a_shorter_context_is_taken_and_an_impossible_one_refused(folder: Path, tmp_path: Path) -> None:
    assert load(folder, tmp_path, max_context_tokens=16).max_context_tokens == 16
    assert load(folder, tmp_path, max_context_tokens=2048).max_context_tokens == 2048
    for impossible in (15, 0, -1, 2049):
        with pytest.raises(UnsupportedOptionError, match="at most 2048"):
            load(folder, tmp_path, max_context_tokens=impossible)


def test_a_model_without_a_limit_of_its_own_takes_any_context(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    MambaForCausalLM(MambaConfig(vocab_size=384, hidden_size=16, num_hidden_layers=1)).save_pretrained(folder)
    assert load(folder, tmp_path).max_context_tokens == 32_768
    assert load(folder, tmp_path, max_context_tokens=100_000).max_context_tokens == 100_000


def test_the_default_reply_length_fits_the_context(folder: Path, tmp_path: Path) -> None:
    assert load(folder, tmp_path, max_context_tokens=100).default_sampling.max_new_tokens == 100


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "", "meta", "cpu:7"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(UnsupportedOptionError, match="not available"):
        resolve_device(device)


@pytest.mark.parametrize(
    ("requested", "of_checkpoint", "has_bfloat16", "expected"),
    [
        ("auto", torch.bfloat16, True, torch.bfloat16),
        ("auto", torch.bfloat16, False, torch.float32),
        ("auto", torch.float16, True, torch.float32),
        ("auto", torch.float32, True, torch.float32),
        ("auto", None, True, torch.float32),
        ("bfloat16", torch.float32, False, torch.bfloat16),
        ("float16", torch.float32, False, torch.float16),
        ("float32", torch.bfloat16, True, torch.float32),
    ],
)
def test_auto_dtype_is_the_checkpoints_where_the_cpu_computes_it_well(
    requested: str, of_checkpoint, has_bfloat16: bool, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": has_bfloat16})
    assert resolve_dtype(requested, of_checkpoint, CPU) == expected


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedOptionError, match="int7"):
        resolve_dtype("int7", torch.float32, CPU)


NO_OPINION = Sampling(
    temperature=0.7, top_p=0.9, top_k=0, min_p=0.0, repetition_penalty=1.1, max_new_tokens=1000, stop=()
)
NOTHING_CHANGED = Sampling(temperature=1.0, top_p=1.0, repetition_penalty=1.0).merged(NO_OPINION)
"""What the library means by what a file that has an opinion leaves out."""


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, NO_OPINION),
        ({"eos_token_id": 2, "pad_token_id": 2}, NO_OPINION),
        ({"temperature": 0.6, "top_p": 0.95}, replace(NOTHING_CHANGED, temperature=0.6, top_p=0.95)),
        ({"top_k": 64}, replace(NOTHING_CHANGED, top_k=64)),
        ({"do_sample": True, "temperature": 0.3}, replace(NOTHING_CHANGED, temperature=0.3)),
        ({"do_sample": False}, replace(NOTHING_CHANGED, temperature=0.0)),
        ({"repetition_penalty": 1.3}, replace(NO_OPINION, repetition_penalty=1.3)),
        ({"max_new_tokens": 77}, replace(NO_OPINION, max_new_tokens=77)),
        ({"temperature": -3.0}, NO_OPINION),
    ],
)
def test_sampling_defaults_are_the_models_own(generation: dict, expected: Sampling) -> None:
    assert sampling_of(GenerationConfig(**generation), 1000) == expected


def test_an_index_that_names_what_cannot_be_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(ModelLoadError, match="cannot be read"):
        locate_model(str(tmp_path), tmp_path / "models", lambda _line: None)
