#!/usr/bin/env python3
"""Turns a GGUF file into a Hugging Face directory: `gguf_to_hugging_face.py MODEL.gguf OUT`.

The models are Llama, Qwen2 and Qwen3.
OUT gets config.json, generation_config.json, model.safetensors in bf16, tokenizer.json and tokenizer_config.json. The
package gguf dequantises. The weights are rounded to bf16 once, here: so every program that reads OUT has the same
values, in whatever precision it computes, and a model of 0.6 billion weights needs 1.3 GB. What would make a model of
other results is refused by name.
"""

import argparse
import json
import pathlib
import struct
import sys

import numpy
import tqdm
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize

BLOCK_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# What a layer has beside the weights above.
MORE_NAMES = {
    "llama": {},
    "qwen2": {"attn_q.bias": "self_attn.q_proj.bias", "attn_k.bias": "self_attn.k_proj.bias",
              "attn_v.bias": "self_attn.v_proj.bias"},
    "qwen3": {"attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight"}}
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight"}

# How each of the tokenizers that GGUF names cuts text before its merges, and the normalizer before that.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE_TOKENIZERS = {
    "smollm": (None, [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]),
    "qwen2": ({"type": "NFC"}, [
        {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}])}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


class Unsupported(Exception):
    """Something that the file has and this script does not know."""


def known(what, value, names):
    """names[value], where there is one."""
    if value not in names:
        raise Unsupported(f"{what} is {json.dumps(value)}, known: {', '.join(names)}")
    return names[value]


class Metadata:
    """The key-value pairs of a GGUF file."""

    def __init__(self, reader):
        self.values = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture = self.required("general.architecture")
        known("general.architecture", self.architecture, ARCHITECTURES)
        scaling = self.model("rope.scaling.type", "none")
        if scaling != "none":
            raise Unsupported(f"{self.architecture}.rope.scaling.type is {json.dumps(scaling)}, known: none")
        for name in ("attention.sliding_window", "attention.scale", "expert_count"):
            if self.model(name, 0):
                raise Unsupported(f"{self.architecture}.{name} is {self.model(name)}: it is not converted")
        width = self.head_dim()
        if self.model("rope.dimension_count", width) != width:
            raise Unsupported(f"{self.architecture}.rope.dimension_count is {self.model('rope.dimension_count')}, known: {width}, "
                              "all of a head")

    def required(self, name):
        if name not in self.values:
            raise Unsupported(f"{name} is missing")
        return self.values[name]

    def model(self, name, *absent):
        name = f"{self.architecture}.{name}"
        return self.values.get(name, *absent) if absent else self.required(name)

    def tokenizer(self, name, *absent):
        name = f"tokenizer.ggml.{name}"
        return self.values.get(name, *absent) if absent else self.required(name)

    def decimal(self, name, *absent):
        """A number that is stored as f32, as it was written: 1e-05, not 9.999999747378752e-06."""
        return float(str(numpy.float32(self.model(name, *absent))))

    def head_dim(self):
        return self.model("attention.key_length", self.model("embedding_length") // self.heads())

    def heads(self):
        return self.model("attention.head_count")

    def key_heads(self):
        return self.model("attention.head_count_kv", self.heads())


def hugging_face_name(name, architecture):
    if name in NAMES:
        return NAMES[name]
    if name == "rope_freqs.weight":
        raise Unsupported("rope_freqs.weight: the rotary scaling of Llama 3.1 is not converted")
    names = {f"{part}.weight": f"{known}.weight" for part, known in BLOCK_NAMES.items()} | MORE_NAMES[architecture]
    block, layer, rest = [*name.split(".", 2), "", ""][:3]
    if block != "blk" or rest not in names:
        raise Unsupported(f"{name}: a tensor that is not known of {architecture}")
    return f"model.layers.{layer}.{names[rest]}"


def shape(tensor):
    return [int(size) for size in reversed(tensor.shape)]


def values(tensor, metadata):
    """The tensor in f32. llama.cpp interleaves the halves of each head of Q and K; Hugging Face has them one by one."""
    weights = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32, copy=False).reshape(shape(tensor))
    heads = {"attn_q": metadata.heads, "attn_k": metadata.key_heads}.get(tensor.name.split(".")[-2])
    if metadata.architecture == "llama" and heads:
        rows = weights.shape[0]
        halves = weights.reshape(heads(), -1, 2, *weights.shape[1:])
        weights = halves.swapaxes(1, 2).reshape(rows, *weights.shape[1:])
    return weights


def bfloat16(weights):
    """Bits of the nearest bf16 numbers, ties to even."""
    bits = numpy.ascontiguousarray(weights).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def write_safetensors(path, tensors, metadata):
    """One tensor after the other, so that no more than one is in memory."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        start, end = end, end + 2 * int(tensor.n_elements)
        header[hugging_face_name(tensor.name, metadata.architecture)] = {
            "dtype": "BF16", "shape": shape(tensor), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tqdm.tqdm(tensors, desc="Converting", unit="tensor", mininterval=1 if sys.stderr.isatty() else 60):
            bfloat16(values(tensor, metadata)).tofile(file)


def config(metadata, tied):
    m, architecture = metadata.model, metadata.architecture
    content = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture, "hidden_size": m("embedding_length"), "intermediate_size": m("feed_forward_length"),
        "num_hidden_layers": m("block_count"), "num_attention_heads": metadata.heads(),
        "num_key_value_heads": metadata.key_heads(), "hidden_act": "silu",
        "max_position_embeddings": m("context_length"),
        "rms_norm_eps": metadata.decimal("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.decimal("rope.freq_base", 10000), "vocab_size": len(metadata.tokenizer("tokens")),
        "head_dim": metadata.head_dim(),
        "tie_word_embeddings": tied, "bos_token_id": metadata.tokenizer("bos_token_id", None),
        "eos_token_id": metadata.tokenizer("eos_token_id", None), "torch_dtype": "bfloat16"}
    width = metadata.head_dim()
    if m("attention.value_length", width) != width:
        raise Unsupported(f"attention.value_length is {m('attention.value_length')}, known: {width}, that of the keys")
    if architecture != "llama":
        content["use_sliding_window"] = False
    return content


def tokenizer(metadata):
    known("tokenizer.ggml.model", metadata.tokenizer("model"), {"gpt2": True})
    normalizer, pre_tokenizers = known("tokenizer.ggml.pre", metadata.tokenizer("pre"), PRE_TOKENIZERS)
    if metadata.tokenizer("add_bos_token", False):
        raise Unsupported("tokenizer.ggml.add_bos_token is true, known: false")
    kinds = [TokenType(kind) for kind in metadata.tokenizer("token_type")]
    tokens = list(enumerate(zip(metadata.tokenizer("tokens"), kinds)))
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    # Added tokens are in the vocabulary, too: transformers numbers anew those that are not.
    vocabulary = {token: i for i, (token, kind) in tokens if kind != TokenType.UNUSED}  # these only pad the embedding
    added = [{"id": i, "content": token, **flags, "special": kind == TokenType.CONTROL}
             for i, (token, kind) in tokens if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": vocabulary, "merges": metadata.tokenizer("merges")}}


def opened(gguf):
    with open(gguf, "rb") as file:
        if file.read(4) != b"GGUF":
            raise Unsupported("this is no GGUF file")
    try:
        return GGUFReader(gguf)
    except Exception as error:  # of many types: the package trusts the file
        raise Unsupported(f"the file is damaged or not whole: {error}") from error


def convert(gguf, out):
    reader = opened(gguf)
    metadata = Metadata(reader)
    names = [hugging_face_name(tensor.name, metadata.architecture) for tensor in reader.tensors]
    for layer in range(metadata.model("block_count") if metadata.architecture == "qwen3" else 0):
        if any(f"model.layers.{layer}.{norm}" not in names for norm in MORE_NAMES["qwen3"].values()):
            raise Unsupported(f"blk.{layer} has no norms of heads, which qwen3 has")
    tokens = metadata.tokenizer("tokens")
    bos, eos = metadata.tokenizer("bos_token_id", None), metadata.tokenizer("eos_token_id", None)
    # Chat models end a turn with EOS, and a text with the token that separated texts in training.
    ends = [eos] if eos is not None else []
    ends += [i for i, token in enumerate(tokens) if token == "<|endoftext|>" and i != eos]
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_prefix_space": False,
        "bos_token": None if bos is None else tokens[bos], "eos_token": None if eos is None else tokens[eos],
        "clean_up_tokenization_spaces": False, "model_max_length": metadata.model("context_length")}
    if "tokenizer.chat_template" in metadata.values:
        tokenizer_config["chat_template"] = metadata.values["tokenizer.chat_template"]
    files = {
        "config.json": config(metadata, "lm_head.weight" not in names),
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": ends or None},
        "tokenizer.json": tokenizer(metadata), "tokenizer_config.json": tokenizer_config}

    # Nothing is written of a file that cannot be converted.
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_safetensors(out / "model.safetensors", reader.tensors, metadata)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("gguf", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    options = p.parse_args()
    try:
        convert(options.gguf, options.out)
    except (OSError, Unsupported) as error:
        sys.exit(f"gguf_to_hugging_face.py: {options.gguf}: {error}")


if __name__ == "__main__":
    main()
