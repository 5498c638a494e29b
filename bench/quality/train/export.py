"""Writes a trained state as a Hugging Face checkpoint: `python export.py DIR/state.pt OUT`.

OUT gets config.json, generation_config.json, model.safetensors in bf16, tokenizer.json and tokenizer_config.json.
"""

import argparse
import json
import pathlib

import data
import torch
from model import Config, Llama, parts
from safetensors.torch import save_file


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("state", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--context", type=int, default=4096, help="max_position_embeddings")
    options = p.parse_args()
    c = Config(vocabulary=data.vocabulary.VOCABULARY)
    flat = torch.load(options.state, map_location="cpu")["flat"]
    tensors, start = {}, 0
    for name, parameter in Llama(c).named_parameters():
        values = flat[start:start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        for part, tensor in parts(c, name, values).items():
            tensors[part] = tensor.to(torch.bfloat16).contiguous()
    options.out.mkdir(parents=True, exist_ok=True)

    def write(name, content):
        (options.out / name).write_text(content + "\n")

    write("config.json", json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": c.width,
        "intermediate_size": c.hidden, "num_hidden_layers": c.layers, "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads, "head_dim": c.head_dim, "hidden_act": "silu",
        "max_position_embeddings": options.context, "rms_norm_eps": c.epsilon, "rope_theta": c.rope_theta,
        "vocab_size": c.vocabulary, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": data.vocabulary.BOS_ID, "eos_token_id": data.vocabulary.EOS_ID, "torch_dtype": "bfloat16"},
        indent=2))
    write("generation_config.json", json.dumps(
        {"bos_token_id": data.vocabulary.BOS_ID, "eos_token_id": data.vocabulary.EOS_ID, "do_sample": False}, indent=2))
    write("tokenizer_config.json", json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": data.vocabulary.BOS,
         "eos_token": data.vocabulary.EOS, "model_max_length": options.context}, indent=2))
    write("tokenizer.json", data.vocabulary.tokenizer_json())
    save_file(tensors, options.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
