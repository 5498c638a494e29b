#!/usr/bin/env python3
"""Times the prefill on this machine's CPU: the reference engine, dense and lazy, Hugging Face transformers with PyTorch's
SDPA, and llama.cpp, in turn; and the decode steps after it, of the host and of llama.cpp.

Every shape is run with every prompt length. Transformers are left out without PyTorch, llama.cpp without `llama-bench`
on the PATH or without a file of the shape's model (--gguf SHAPE=FILE). Prints JSON for bench/make_tables.py.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import types

import transformers_ttft

# The prompt that chooses PyTorch's type.
PROBE_TOKENS = 256


def gguf(text):
    shape, separator, path = text.partition("=")
    if not (separator and shape in transformers_ttft.SHAPES and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not SHAPE=FILE with one of {', '.join(transformers_ttft.SHAPES)}")
    return shape, path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    positive = transformers_ttft.positive
    parser.add_argument("--ttft-bench", type=pathlib.Path, required=True, metavar="PROGRAM", help="the host's benchmark")
    parser.add_argument("--shape", choices=list(transformers_ttft.SHAPES), nargs="+", default=["smollm2", "qwen2.5-0.5b"])
    parser.add_argument("--prompt", type=positive, nargs="+", default=[2000, 4000], metavar="TOKENS", help="prompt lengths")
    parser.add_argument("--schedule", default="8:0.3,16:0.5", help="of the lazy prefill")
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--weights", choices=["dtype", "int8"], default="dtype", help="of the host's products")
    parser.add_argument("--generate", type=positive, default=32, metavar="TOKENS", help="decode steps after the prompt")
    parser.add_argument("--threads", type=positive, default=2, metavar="N")
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="turns; figures are medians")
    parser.add_argument("--gguf", type=gguf, action="append", default=[], metavar="SHAPE=FILE", help="for llama.cpp")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file instead of the standard output")
    return parser.parse_args()


def output_of(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare.py: {command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout)


class Transformers:
    """The model of one shape, in f32 where that is faster, as on processors without instructions for bf16; `why_not`
    says why there is none."""

    def __init__(self, options, shape):
        try:
            import torch
            import transformers
        except ImportError as error:
            self.why_not = f"transformers: {error}"
            return
        self.why_not = None
        self.torch = torch
        self.version = f"transformers {transformers.__version__}, PyTorch {torch.__version__.split('+')[0]}"
        torch.set_num_threads(options.threads)
        models = {dtype: transformers_ttft.make_model(torch, transformers, types.SimpleNamespace(
            shape=shape, prompt=[PROBE_TOKENS, *options.prompt], dtype=dtype, device="cpu"))
            for dtype in (options.dtype, "f32")}
        times = {}
        for dtype, model in models.items():
            self.model = model
            self.prefill_ms(PROBE_TOKENS)  # warm-up
            times[dtype] = self.prefill_ms(PROBE_TOKENS)
        self.dtype = min(times, key=times.get)
        self.model = models[self.dtype]

    def prefill_ms(self, prompt):
        tokens = self.torch.randint(0, self.model.config.vocab_size, (1, prompt))
        with self.torch.inference_mode():
            return transformers_ttft.prefill_ms(self.torch, self.model, tokens)


def llama_cpp(options, shape):
    """(program and file, why not)"""
    program = shutil.which("llama-bench")
    if program is None:
        return None, "llama.cpp: llama-bench is not on the PATH"
    path = dict(options.gguf).get(shape)
    return (program, path) if path else None, None if path else f"llama.cpp: no --gguf {shape}=FILE"


def llama_cpp_run(options, program, path, prompt):
    """Milliseconds of the prefill and of a decode step after it, and the weights' type."""
    command = [program, "-m", path, "-ngl", 0, "-b", prompt, "-t", options.threads, "-r", 1, "-o", "json"]
    prefill = output_of([*command, "-p", prompt, "-n", 0])[0]
    decode = output_of([*command, "-p", 0, "-n", options.generate, "-d", prompt])[0]
    return prefill["avg_ns"] * 1e-6, decode["avg_ns"] * 1e-6 / options.generate, prefill["model_type"]


def measure(options, shape, prompt, torch_model):
    case = {"shape": shape, "prompt_tokens": prompt, "dtype": options.dtype, "threads": options.threads,
            "repeats": options.repeats, "schedule": options.schedule, "decode_steps": options.generate}
    left_out = [torch_model.why_not] if torch_model.why_not else []
    files, why_not = llama_cpp(options, shape)
    left_out += [why_not] if why_not else []
    host, transformers_ms, llama_ms, llama_decode_ms = [], [], [], []
    if not torch_model.why_not:
        case |= {"transformers": torch_model.version, "transformers_dtype": torch_model.dtype}
        torch_model.prefill_ms(prompt)  # warm-up
    for _ in range(options.repeats):
        host.append(output_of([options.ttft_bench, "--shape", shape, "--prompt", prompt, "--dtype", options.dtype,
                               "--weights", options.weights, "--threads", options.threads, "--schedule",
                               options.schedule, "--generate", options.generate + 1, "--repeats", 1]))
        if not torch_model.why_not:
            transformers_ms.append(torch_model.prefill_ms(prompt))
        if files:
            prefill_ms, decode_ms, case["llama_cpp_type"] = llama_cpp_run(options, *files, prompt)
            llama_ms.append(prefill_ms)
            llama_decode_ms.append(decode_ms)
    case |= {"isa": host[0]["isa"], "weights": host[0]["weights"]}
    host_decode_ms = [run["dense_decode_ms"] / options.generate for run in host]
    case["dense_decode_ms"] = statistics.median(host_decode_ms)
    if llama_decode_ms:
        case["llama_cpp_decode_ms"] = statistics.median(llama_decode_ms)
        case["dense_over_llama_cpp_decode"] = statistics.median(
            theirs / ours for theirs, ours in zip(llama_decode_ms, host_decode_ms, strict=True))
    for name in ("dense_ms", "lazy_ms", "speedup", "ideal_speedup", "overhead_percent", "library_percent",
                 "dense_share_of_gemm_percent"):
        case[name] = statistics.median(run[name] for run in host)
    for name, times in (("transformers", transformers_ms), ("llama_cpp", llama_ms)):
        if times:
            case[f"{name}_ms"] = statistics.median(times)
            case[f"dense_over_{name}"] = statistics.median(
                time / run["dense_ms"] for time, run in zip(times, host, strict=True))
    return case | {"left_out": left_out}


def main():
    options = parse_arguments()
    results = []
    for shape in options.shape:
        torch_model = Transformers(options, shape)
        for prompt in options.prompt:
            results.append(measure(options, shape, prompt, torch_model))
            if options.json is not None:  # after each case, for a run that is stopped
                transformers_ttft.write(options.json, results)
    if options.json is None:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
