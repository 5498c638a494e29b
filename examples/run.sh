#!/usr/bin/env bash
# run.sh [MODEL [PROMPT_FILE]] [OPTION…]: a model's answer with every token computed and with LazyLLM, side by side.
# Without MODEL: the embedded model answers a question about some forty documents. A MODEL of models/models.txt is fetched
# first, and asked about a keeper's log; a folder of such a name is written with a slash. All but llama2.c files run in
# bf16. Installs what is missing on a Debian machine; OPTIONs go to lazyllm-generate, such as --schedule 4:0.5,8:0.5,
# --dtype f32 or --report page.html.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
names=$(grep -v '^#' "$here/models/models.txt" | cut -d' ' -f1 | sort -u | xargs)

if (($#)) && [[ $1 == -h || $1 == --help ]]; then
  echo "usage: bash examples/run.sh [MODEL [PROMPT_FILE]] [OPTION...]"
  echo "MODEL is one of $names, a Hugging Face directory (config.json, safetensors, tokenizer; with a slash where it has one of these names) or a llama2.c .bin with its tokenizer.bin;"
  echo "without it, the embedded model in examples/models/tiny. OPTIONs are those of lazyllm-generate."
  exit
fi
if (($#)) && [[ $1 != -* ]]; then
  model=$1
  shift
  prompt=(--prompt-file "$here/prompts/lighthouse.txt")
  defaults=()
  if [[ " $names " == *" $model "* ]]; then
    prompt=(--prompt-file "$here/prompts/keepers_log.txt")
    defaults=(--chat --dtype bf16 --max-tokens 32)
    presets=$here/models/presets/$model.json
    if [[ -e $presets ]]; then defaults+=(--schedule "@$presets"); fi  # else what fits any model
    model=$(bash "$here/models/fetch.sh" "$model")
  elif [[ -d $model ]]; then
    defaults=(--dtype bf16)  # half of f32's memory
  elif [[ ! -e $model ]]; then
    echo "run.sh: there is no file or folder \"$model\", nor a model of this name; known are: $names" >&2
    exit 1
  fi
  if (($#)) && [[ $1 != -* ]]; then
    set -- --prompt-file "$@"
  fi
  set -- "${defaults[@]}" "$@"
else
  model=$here/models/tiny
  prompt=(--prompt-file "$here/prompts/documents.txt")
  set -- --dtype bf16 --schedule "@$model/schedules.json" --max-tokens 16 "$@"
fi

# A prompt of the user's own takes the place of the one above.
for option in "$@"; do
  case $option in --prompt | --prompt=* | --prompt-file | --prompt-file=* | --token-ids | --token-ids=*) prompt=() ;; esac
done

tokenizer=()
beside=("$(dirname "$model")"/tok*.bin)
if [[ -f $model && ${#beside[@]} == 1 && -f ${beside[0]} ]]; then
  # llama2.c keeps the tokenizer apart, as tokenizer.bin, tok512.bin and the like.
  tokenizer=(--tokenizer "${beside[0]}")
fi

bash "$here/../cmake/build_release.sh" lazyllm-generate
echo "== Generate =="
exec "$here/../build/release/bin/lazyllm-generate" --model "$model" "${tokenizer[@]}" "${prompt[@]}" --compare "$@"
