"""Writes tests/reference/fixtures/transformers/: tiny random checkpoints of each architecture, with the logits that
Hugging Face transformers computes for them in f32. Formats: README.md."""

import json
import pathlib
import shutil

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

FOLDER = pathlib.Path(__file__).parent / "fixtures" / "transformers"
PREFIXES = [1, 2, 3, 7, 16, 31, 64, 96]
LENGTH = PREFIXES[-1]

def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 96,
}
LLAMA2 = LLAMA | {"pretraining_tp": 1, "rope_scaling": None, "torch_dtype": "float16"}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = LLAMA | {
    "attention_bias": False,
    "bos_token_id": 94,
    "eos_token_id": [91, 92, 93],
    "head_dim": 16,
    "mlp_bias": False,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_scaling": LLAMA3_ROPE,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_key_value_heads": 2,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
QWEN2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "max_window_layers": 2,
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
}
# The heads together are wider than the hidden rows, and each is normalised. A smaller epsilon would not show there.
QWEN3 = without(QWEN2, "attention_dropout") | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 16,
    "model_type": "qwen3",
    "rms_norm_eps": 0.01,
    "sliding_window": None,
    "tie_word_embeddings": True,
}


# name: (config.json as such checkpoints really have it, storage, largest shard)
CHECKPOINTS = {
    "llama2": (LLAMA2, "float32", None),
    "llama2_f16": (LLAMA2, "float16", None),
    # XGen is Llama with a GPT-2 vocabulary, and a config.json too old to know of key heads and of RoPE's base.
    "xgen": (
        without(LLAMA, "num_key_value_heads")
        | {"bos_token_id": 100, "eos_token_id": 100, "pad_token_id": 0, "rms_norm_eps": 1e-6, "vocab_size": 128},
        "float32",
        None,
    ),
    "llama3_tied": (
        LLAMA3 | {"tie_word_embeddings": True, "hidden_size": 48, "num_attention_heads": 3, "torch_dtype": "float32"},
        "float32",
        None,
    ),
    "llama3_bf16": (LLAMA3, "bfloat16", None),
    "llama3_sharded": (LLAMA3 | {"num_hidden_layers": 3}, "float32", "40KB"),
    "llama_linear": (LLAMA2 | {"rope_scaling": {"type": "linear", "factor": 4.0}}, "float32", None),
    "llama_linear_new_key": (LLAMA2 | {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, "float32", None),
    "mistral": (MISTRAL, "float32", None),
    # As in Mistral Nemo: the heads together are wider than the hidden rows.
    "mistral_wide_heads": (MISTRAL | {"head_dim": 16, "sliding_window": None, "rope_theta": 1000000.0}, "float32", None),
    "qwen2": (QWEN2, "float32", None),
    "qwen2_tied_bf16": (QWEN2 | {"tie_word_embeddings": True, "torch_dtype": "bfloat16"}, "bfloat16", None),
    "llama3_new_config": (LLAMA3 | {"tie_word_embeddings": True}, "float32", None),
    "qwen2_new_config": (QWEN2, "float32", None),
    "qwen3": (QWEN3, "float32", None),
    "qwen3_new_config": (QWEN3, "bfloat16", None),
}
# Their config.json is as save_pretrained of transformers 5 writes it, with "rope_parameters" and "dtype".
NEW_STYLE = {"llama3_new_config", "qwen2_new_config", "qwen3_new_config"}



def fill(model, seed):
    """Weights larger than those of an untrained model: attention far from uniform, logits of a few units."""
    random = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=random)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif name.endswith("bias"):
            values = 0.5 * values
        else:
            gain = 1.5 if ".q_proj." in name or ".k_proj." in name else 2.0 if "embed" in name or "lm_head" in name else 1.0
            values = values * gain / parameter.shape[1] ** 0.5
        parameter.data.copy_(values)


def logits_of(folder, tokens, **changes):
    config = AutoConfig.from_pretrained(folder)
    for key, value in changes.items():
        setattr(config, key, value)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model, model(torch.tensor([tokens])).logits[0]


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def write_checkpoint(name, config, storage, shard, seed):
    folder = FOLDER / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    fill(model, seed)
    model.to(getattr(torch, storage)).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name not in NEW_STYLE:
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_expected(name, config, seed):
    folder = FOLDER / name
    tokens = np.random.default_rng(seed).integers(0, config["vocab_size"], LENGTH).tolist()
    model, logits = logits_of(folder, tokens)
    with torch.no_grad():
        prefix = max(relative(model(torch.tensor([tokens[:n]])).logits[0, -1], logits[n - 1]) for n in PREFIXES)
    assert prefix < 1e-5, prefix

    plain = {"rope_type": "default", "rope_theta": config.get("rope_theta", 10000.0)}
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        new, old = (logits_of(folder, tokens[:1], **change)[0].model.rotary_emb.inv_freq for change in ({}, {"rope_parameters": plain}))
        assert len({round(ratio, 3) for ratio in (old / new).tolist()}) == 3, "one of the three bands of llama3 is missing"

    # Each feature must show in the logits of the whole prompt: a reader that ignores it fails.
    features = {}
    if config.get("rope_scaling"):
        features["RoPE scaling"] = logits_of(folder, tokens, rope_parameters=plain)[1]
    if "rope_theta" in config and config["rope_theta"] != 10000.0 and not config.get("rope_scaling"):
        features["RoPE base"] = logits_of(folder, tokens, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})[1]
    features["epsilon"] = logits_of(folder, tokens, rms_norm_eps=10 * max(config["rms_norm_eps"], 0.001))[1]
    if config["model_type"] == "qwen2":
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.data.zero_()
        with torch.no_grad():
            features["bias"] = model(torch.tensor([tokens])).logits[0]
    if config["model_type"] == "qwen3":
        for part in ("q_norm", "k_norm"):
            changed = logits_of(folder, tokens)[0]
            for parameter_name, parameter in changed.named_parameters():
                if parameter_name.endswith(f"{part}.weight"):
                    parameter.data.fill_(1)
            with torch.no_grad():
                features[part] = changed(torch.tensor([tokens])).logits[0]
    shows = {feature: round(relative(other[-1], logits[-1]), 4) for feature, other in features.items()}
    assert min(shows.values()) > 1e-3, shows

    (folder / "expected_logits.f32").write_bytes(logits.numpy().astype("<f4").tobytes())
    expected = {"tokens": tokens, "prefixes": PREFIXES, "vocabulary": config["vocab_size"], "logits": "expected_logits.f32"}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:22} {size:7} bytes  {sorted(p.name for p in folder.glob('*.safetensors'))}  without the feature: {shows}", flush=True)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for seed, (name, (config, storage, shard)) in enumerate(CHECKPOINTS.items()):
        write_checkpoint(name, config, storage, shard, seed)
        write_expected(name, config, seed)
    (FOLDER / "checkpoints.json").write_text(json.dumps(list(CHECKPOINTS), indent=1) + "\n")
    print("bytes:", sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()))


if __name__ == "__main__":
    main()
