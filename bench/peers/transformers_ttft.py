#!/usr/bin/env python3
"""Times the prefill of Hugging Face transformers with PyTorch's fused attention (SDPA) on randomly initialised Llama
models: the time to first token, what `ttft_bench --device cuda` is compared with.

Every prompt length is run with every batch size. Needs PyTorch and transformers; prints JSON for bench/make_tables.py.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

# width, layers, heads, key/value heads, feed-forward width, vocabulary, rotary base: as in
# bench/examples/llama/model/shapes.hpp, and a tiny one to try the script with.
SHAPES = {
    "tiny": (64, 2, 4, 2, 128, 256, 1e4),
    "smollm2": (576, 30, 9, 3, 1536, 49152, 1e5),
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936, 1e6),
    "1.1b": (2048, 22, 32, 4, 5632, 32000, 1e4),
    "llama-2-7b": (4096, 32, 32, 32, 11008, 32000, 1e4),
    "llama-3-8b": (4096, 32, 32, 8, 14336, 128256, 5e5),
}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is out of range, at least 1")
    return value


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-2-7b")
    parser.add_argument("--prompt", type=positive, nargs="+", default=[4096], metavar="TOKENS", help="prompt lengths")
    parser.add_argument("--batch", type=positive, nargs="+", default=[1], metavar="N", help="sequences at once")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--warm-up", type=positive, default=2, metavar="N", help="runs before the timed ones")
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="timed runs; figures are medians")
    parser.add_argument("--seconds", type=float, help="start no new case after so many seconds, and name those left out")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file instead of the standard output")
    return parser.parse_args()


def make_model(torch, transformers, options):
    width, layers, heads, kv_heads, intermediate_size, vocab, rope_theta = SHAPES[options.shape]
    longest = max(options.prompt)
    config = transformers.LlamaConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=intermediate_size, vocab_size=vocab, max_position_embeddings=longest, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta})
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, DTYPES[options.dtype]))  # versions differ in the name of the argument for it
    try:
        with torch.device(options.device):
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(before)
    return model.eval()


def prefill_ms(torch, model, tokens):
    """Milliseconds until the logits of each sequence's last token are there; all keys and values are kept."""
    def run():
        return model(input_ids=tokens, use_cache=True, logits_to_keep=1).logits

    if tokens.device.type != "cuda":
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    run()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1])


def measure(torch, model, options, prompt, batch):
    vocab = model.config.vocab_size
    tokens = torch.randint(0, vocab, (batch, prompt), device=options.device)
    for _ in range(options.warm_up):
        prefill_ms(torch, model, tokens)
    times = [prefill_ms(torch, model, tokens) for _ in range(options.repeats)]
    return {"dense_ms": statistics.median(times), "fastest_ms": min(times)}


def write(path, results):
    """Writes all of the file or leaves the one before."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(json.dumps(results, indent=2) + "\n")
        os.replace(part, path)
    except OSError as error:
        sys.exit(f"transformers_ttft.py: {error}")


def main():
    options = parse_arguments()
    try:
        import torch
        import transformers
    except ImportError as error:
        sys.exit(f"transformers_ttft.py: {error}; PyTorch and transformers are needed")
    try:
        kind = torch.device(options.device).type
    except RuntimeError as error:
        sys.exit(f"transformers_ttft.py: --device {options.device}: {str(error).splitlines()[0]}")
    if kind not in ("cpu", "cuda"):
        sys.exit(f"transformers_ttft.py: --device {options.device} is neither cpu nor cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        sys.exit(f"transformers_ttft.py: --device {options.device}: PyTorch {torch.__version__} sees no CUDA device")

    start = time.monotonic()
    results = []
    for prompt in options.prompt:
        for batch in options.batch:
            case = {"peer": "transformers", "version": transformers.__version__, "torch": torch.__version__,
                    "device": kind, "shape": options.shape, "dtype": options.dtype, "prompt_tokens": prompt,
                    "batch": batch}
            if kind == "cuda":
                case["gpu"] = torch.cuda.get_device_name(options.device)
            results.append(case | {"left_out": "no time was left"})

    def save():  # after each case, for a run that is stopped
        if options.json is not None:
            write(options.json, results)

    save()
    with torch.inference_mode():
        model = make_model(torch, transformers, options)
        for case in results:
            if options.seconds is not None and time.monotonic() - start > options.seconds:
                break
            try:
                figures = measure(torch, model, options, case["prompt_tokens"], case["batch"])
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                figures = {"left_out": "not enough device memory"}
            del case["left_out"]
            case |= figures | {"attention": model.config._attn_implementation}
            save()
    if options.json is None:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
