#!/usr/bin/env bash
# run.sh MODEL [PROMPT_FILE] [OPTION…]: a model's answer with every token computed and with LazyLLM, side by side.
# Installs what is missing on a Debian machine; OPTIONs go to lazyllm-generate, such as --schedule 4:0.5,8:0.5.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

if (($# == 0)); then
  echo "usage: bash examples/run.sh MODEL [PROMPT_FILE] [OPTION...]" >&2
  echo "MODEL is a Hugging Face directory (config.json, safetensors, tokenizer) or a llama2.c .bin with its tokenizer.bin." >&2
  exit 2
fi
model=$1
shift
prompt=$here/prompts/lighthouse.txt
if (($#)) && [[ $1 != -* ]]; then
  prompt=$1
  shift
fi

tokenizer=()
beside=("$(dirname "$model")"/tok*.bin)
if [[ -f $model && " $* " != *" --tokenizer"* && ${#beside[@]} == 1 && -f ${beside[0]} ]]; then
  # llama2.c keeps the tokenizer apart, as tokenizer.bin, tok512.bin and the like.
  tokenizer=(--tokenizer "${beside[0]}")
fi

bash "$here/../cmake/build_release.sh" lazyllm-generate
echo "== Generate =="
exec "$here/../build/release/bin/lazyllm-generate" --model "$model" "${tokenizer[@]}" --prompt-file "$prompt" --compare "$@"
