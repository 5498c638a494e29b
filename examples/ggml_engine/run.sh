#!/usr/bin/env bash
# run.sh [smollm2|MODEL.gguf [PROMPT_FILE]] [OPTION…]: the same answer from llama.cpp itself, from the ggml engine with all
# tokens, and from it with LazyLLM, in one table. Installs, fetches and builds what is missing on a Debian machine; the
# first time that takes some minutes. OPTIONs go to lazyllm-ggml, such as --schedule 8:0.3,16:0.5 or --threads 4.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
examples=$here/..

if (($#)) && [[ $1 == -h || $1 == --help ]]; then
  echo "usage: bash examples/ggml_engine/run.sh [MODEL [PROMPT_FILE]] [OPTION...]"
  echo "MODEL is one of $(grep -v '^#' "$examples/models/models.txt" | cut -d' ' -f1 | sort -u | xargs), or a GGUF file of the architecture llama, qwen2 or qwen3; OPTIONs are those of lazyllm-ggml."
  exit
fi
model=smollm2
if (($#)) && [[ $1 != -* ]]; then
  model=$1
  shift
fi
prompt=$examples/prompts/keepers_log.txt
if (($#)) && [[ $1 != -* ]]; then
  prompt=$1
  shift
fi

prefix=$(bash "$here/llama_cpp.sh")
# A revived row costs as much as a token of the prompt, so only continuations come back.
defaults=(--chat --threads "$(nproc)" --schedule auto:2x --decode-revived 0 --first-revived 0)
if [[ ! -e $model ]] && grep -q "^$model " "$examples/models/models.txt"; then
  model=$(bash "$examples/models/fetch.sh" --gguf "$model")
fi
CMAKE_PREFIX_PATH=$prefix bash "$examples/../cmake/build_release.sh" lazyllm-ggml
echo "== Compare =="
exec "$examples/../build/release/bin/lazyllm-ggml" --model "$model" --prompt-file "$prompt" "${defaults[@]}" "$@"
