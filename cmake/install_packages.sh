#!/usr/bin/env bash
# install_packages.sh PACKAGE…: installs those of the Debian packages that are missing.
set -euo pipefail

missing=()
for package in "$@"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
  echo "No apt-get here. If the build fails, install what these Debian packages hold: ${missing[*]}" >&2
  exit 0
fi
as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
  command -v sudo >/dev/null || { echo "Neither root nor sudo. Missing packages: ${missing[*]}" >&2; exit 1; }
fi
echo "Installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
