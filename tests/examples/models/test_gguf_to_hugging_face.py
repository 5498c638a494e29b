"""examples/models/gguf_to_hugging_face.py with a GGUF file of two layers that the package gguf writes.

Where this Python has no gguf, that of examples/models/fetch.sh's virtual environment runs the test.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy
except ImportError:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    python = cache / "lazyllm" / "venv" / "bin" / "python"
    has_gguf = python.exists() and subprocess.run([python, "-c", "import gguf"], capture_output=True).returncode == 0
    if has_gguf and pathlib.Path(sys.prefix) != python.parent.parent:
        os.execv(python, [python, *sys.argv])
    print("skipped: all of test_gguf_to_hugging_face: there is no Python package gguf; examples/models/fetch.sh installs it")
    sys.exit()

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "models" / "gguf_to_hugging_face.py"
HIDDEN, HEADS, KEY_HEADS, WIDTH, FEED_FORWARD, LAYERS = 8, 4, 2, 6, 10, 2
TOKENS = ["<|endoftext|>", "<|im_end|>", "a", "b", "ab", "[PAD5]"]
KINDS = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * 3 + [gguf.TokenType.UNUSED]


def weights(*shape):
    """Numbers that bf16 holds, all of a tensor's different but for the sign."""
    count = numpy.prod(shape, dtype=int)
    return ((-1.0) ** numpy.arange(count) * (1 + numpy.arange(count) % 128 / 128)).astype(numpy.float32).reshape(shape)


def llama_cpp_rows(rows, heads):
    """The row order that llama.cpp's own converter gives Q and K (LlamaModel.permute)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tensors(architecture="llama"):
    """The tensors as Hugging Face has them, and as GGUF has them."""
    hugging_face, stored = {}, {}

    def add(name, gguf_name, rows, heads=None):
        hugging_face[name] = rows
        stored[gguf_name] = llama_cpp_rows(rows, heads) if heads and architecture == "llama" else rows

    add("model.embed_tokens.weight", "token_embd.weight", weights(len(TOKENS), HIDDEN))
    add("model.norm.weight", "output_norm.weight", weights(HIDDEN))
    for layer in range(LAYERS):
        here, there = f"model.layers.{layer}", f"blk.{layer}"
        add(f"{here}.input_layernorm.weight", f"{there}.attn_norm.weight", weights(HIDDEN))
        add(f"{here}.post_attention_layernorm.weight", f"{there}.ffn_norm.weight", weights(HIDDEN) + 1)
        add(f"{here}.self_attn.q_proj.weight", f"{there}.attn_q.weight", weights(HEADS * WIDTH, HIDDEN), HEADS)
        add(f"{here}.self_attn.k_proj.weight", f"{there}.attn_k.weight", weights(KEY_HEADS * WIDTH, HIDDEN), KEY_HEADS)
        add(f"{here}.self_attn.v_proj.weight", f"{there}.attn_v.weight", -weights(KEY_HEADS * WIDTH, HIDDEN))
        add(f"{here}.self_attn.o_proj.weight", f"{there}.attn_output.weight", weights(HIDDEN, HEADS * WIDTH))
        add(f"{here}.mlp.gate_proj.weight", f"{there}.ffn_gate.weight", weights(FEED_FORWARD, HIDDEN))
        add(f"{here}.mlp.up_proj.weight", f"{there}.ffn_up.weight", -weights(FEED_FORWARD, HIDDEN))
        add(f"{here}.mlp.down_proj.weight", f"{there}.ffn_down.weight", weights(HIDDEN, FEED_FORWARD))
        if architecture == "qwen3":
            add(f"{here}.self_attn.q_norm.weight", f"{there}.attn_q_norm.weight", weights(WIDTH))
            add(f"{here}.self_attn.k_norm.weight", f"{there}.attn_k_norm.weight", -weights(WIDTH))
        if architecture == "qwen2":
            for part, heads in {"q": HEADS, "k": KEY_HEADS, "v": KEY_HEADS}.items():
                add(f"{here}.self_attn.{part}_proj.bias", f"{there}.attn_{part}.bias", weights(heads * WIDTH))
    return hugging_face, stored


def read_safetensors(path):
    """Each tensor as f32."""
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    result = {}
    for name, entry in json.loads(content[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", entry
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        bits = numpy.frombuffer(content[start:end], numpy.uint16).astype(numpy.uint32) << 16
        result[name] = bits.view(numpy.float32).reshape(entry["shape"])
    return result


class Convert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.gguf = pathlib.Path(folder.name) / "model.gguf"
        self.out = pathlib.Path(folder.name) / "out"

    def write(self, stored, architecture="llama", model="gpt2", pre="smollm", head_width=WIDTH, special=True, more=()):
        writer = gguf.GGUFWriter(self.gguf, architecture)
        writer.add_context_length(64)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FEED_FORWARD)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KEY_HEADS)
        if head_width:
            writer.add_key_length(head_width)
            writer.add_value_length(head_width)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(50000)
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(TOKENS)
        writer.add_token_types(KINDS)
        writer.add_token_merges(["a b"])
        if special:
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(1)
            writer.add_chat_template("{{ messages }}")
        for add in more:
            add(writer)
        for name, values in stored.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def convert(self):
        return subprocess.run([sys.executable, SCRIPT, self.gguf, self.out], capture_output=True, text=True)

    def json(self, name):
        return json.loads((self.out / name).read_text(encoding="utf-8"))

    def convert_well(self):
        result = self.convert()
        self.assertEqual(result.returncode, 0, result.stderr)

    def expect_refused(self, *parts):
        result = self.convert()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"^gguf_to_hugging_face\.py: .*model\.gguf: ")
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(self.out.exists())

    def check_tensors(self, expected):
        actual = read_safetensors(self.out / "model.safetensors")
        self.assertEqual(sorted(actual), sorted(expected))
        for name, rows in expected.items():
            self.assertTrue(numpy.array_equal(actual[name], rows), name)

    def test_names_and_rows_of_llama(self):
        expected, stored = tensors()
        q = "blk.0.attn_q.weight"
        self.assertFalse(numpy.array_equal(stored[q], expected["model.layers.0.self_attn.q_proj.weight"]))
        self.write(stored)
        self.convert_well()
        self.check_tensors(expected)
        config = self.json("config.json")
        for name, value in {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "head_dim": WIDTH,
                "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
                "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
                "rope_theta": 50000, "vocab_size": len(TOKENS), "tie_word_embeddings": True, "bos_token_id": 0,
                "eos_token_id": 1}.items():
            self.assertEqual(config[name], value, name)
        self.assertEqual(self.json("generation_config.json"), {"bos_token_id": 0, "eos_token_id": [1, 0]})
        tokenizer = self.json("tokenizer.json")
        self.assertEqual(tokenizer["model"]["vocab"], {token: i for i, token in enumerate(TOKENS[:5])})
        self.assertEqual([(token["id"], token["special"]) for token in tokenizer["added_tokens"]], [(0, True), (1, True)])
        settings = self.json("tokenizer_config.json")
        self.assertEqual((settings["bos_token"], settings["eos_token"]), ("<|endoftext|>", "<|im_end|>"))
        self.assertEqual(settings["chat_template"], "{{ messages }}")

    def test_rows_and_biases_of_qwen2_stay_as_they_are(self):
        expected, stored = tensors("qwen2")
        self.write(stored, architecture="qwen2", pre="qwen2")
        self.convert_well()
        self.check_tensors(expected)
        self.assertEqual(self.json("config.json")["architectures"], ["Qwen2ForCausalLM"])

    def test_norms_of_heads_of_qwen3(self):
        expected, stored = tensors("qwen3")
        self.write(stored, architecture="qwen3", pre="qwen2")
        self.convert_well()
        self.check_tensors(expected)
        config = self.json("config.json")
        self.assertEqual((config["architectures"], config["head_dim"]), (["Qwen3ForCausalLM"], WIDTH))

    def test_a_classifier_of_its_own_is_not_tied(self):
        expected, stored = tensors()
        stored["output.weight"] = expected["lm_head.weight"] = -weights(len(TOKENS), HIDDEN)
        self.write(stored)
        self.convert_well()
        self.check_tensors(expected)
        self.assertFalse(self.json("config.json")["tie_word_embeddings"])

    def test_weights_are_rounded_to_the_nearest_bf16_ties_to_even(self):
        _, stored = tensors()
        stored["output_norm.weight"] = numpy.array(
            [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-9, 0, 1, 2, 3], numpy.float32)
        self.write(stored)
        self.convert_well()
        self.assertEqual(read_safetensors(self.out / "model.safetensors")["model.norm.weight"].tolist(),
                         [1, 1 + 2**-6, 1 + 2**-7, -1, 0, 1, 2, 3])

    def test_a_base_model_has_neither_template_nor_special_tokens(self):
        self.write(tensors()[1], special=False)
        self.convert_well()
        config, settings = self.json("config.json"), self.json("tokenizer_config.json")
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (None, None))
        self.assertEqual((settings["bos_token"], settings["eos_token"]), (None, None))
        self.assertNotIn("chat_template", settings)
        self.assertEqual(self.json("generation_config.json"), {"bos_token_id": None, "eos_token_id": [0]})

    def test_without_a_width_of_heads_it_is_that_of_the_hidden_rows_over_the_heads(self):
        self.write(tensors()[1], head_width=None)
        self.convert_well()
        self.assertEqual(self.json("config.json")["head_dim"], HIDDEN // HEADS)

    def test_what_is_not_known_is_refused_by_name(self):
        stored = tensors()[1]
        self.write(stored, architecture="gemma")
        self.expect_refused('general.architecture is "gemma", known: llama, qwen2, qwen3')
        self.write(stored, pre="llama-bpe")
        self.expect_refused('tokenizer.ggml.pre is "llama-bpe", known: smollm, qwen2')
        self.write(stored, model="llama")
        self.expect_refused('tokenizer.ggml.model is "llama", known: gpt2')
        self.write({**stored, "rope_freqs.weight": weights(WIDTH // 2)})
        self.expect_refused("rope_freqs.weight", "Llama 3.1")
        qwen3 = tensors("qwen3")[1]
        norm = "blk.1.attn_k_norm.weight"
        for architecture in ("llama", "qwen2"):
            self.write({**stored, norm: weights(WIDTH)}, architecture=architecture)
            self.expect_refused(f"{norm}: a tensor that is not known of {architecture}")
        self.write({**qwen3, "blk.0.attn_q.bias": weights(HEADS * WIDTH)}, architecture="qwen3", pre="qwen2")
        self.expect_refused("blk.0.attn_q.bias: a tensor that is not known of qwen3")
        self.write({name: rows for name, rows in qwen3.items() if name != norm}, architecture="qwen3", pre="qwen2")
        self.expect_refused("blk.1 has no norms of heads, which qwen3 has")
        self.write({**stored, "blk.0.ffn_gate_exps.weight": weights(2, FEED_FORWARD, HIDDEN)})
        self.expect_refused("blk.0.ffn_gate_exps.weight")
        self.write(stored, more=[lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)])
        self.expect_refused('llama.rope.scaling.type is "yarn", known: none')
        for add, reason in ((lambda writer: writer.add_sliding_window(16), "llama.attention.sliding_window is 16: it is not converted"),
                            (lambda writer: writer.add_float32("llama.attention.scale", 0.5), "llama.attention.scale is 0.5"),
                            (lambda writer: writer.add_expert_count(4), "llama.expert_count is 4"),
                            (lambda writer: writer.add_rope_dimension_count(WIDTH // 2),
                             f"llama.rope.dimension_count is {WIDTH // 2}, known: {WIDTH}, all of a head")):
            self.write(stored, more=[add])
            self.expect_refused(reason)
        self.write(stored, more=[lambda writer: writer.add_add_bos_token(True)])
        self.expect_refused("tokenizer.ggml.add_bos_token is true, known: false")

    def test_a_file_that_is_no_whole_gguf_file_is_refused_in_one_line(self):
        self.write(tensors()[1])
        whole = self.gguf.read_bytes()
        for content, reason in ((b"", "this is no GGUF file"), (b"\x80\x02}q" + bytes(100), "this is no GGUF file"),
                                (b"GGUF", "the file is damaged or not whole"), (whole[:200], "the file is damaged or not whole"),
                                (whole[:-64], "the file is damaged or not whole")):
            self.gguf.write_bytes(content)
            self.expect_refused(reason)
            self.assertEqual(self.convert().stderr.count("\n"), 1)
        self.gguf.unlink()
        self.expect_refused("No such file or directory")

    def test_values_of_another_width_are_refused(self):
        self.write(tensors()[1], head_width=None, more=[
            lambda writer: writer.add_key_length(WIDTH), lambda writer: writer.add_value_length(WIDTH + 2)])
        self.expect_refused("attention.value_length is 8, known: 6")


if __name__ == "__main__":
    unittest.main()
