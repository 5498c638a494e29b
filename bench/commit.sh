#!/usr/bin/env bash
# commit.sh SOURCE…: the last commit that changed the sources, by which figures are named: texts may follow. Fails where the
# sources have changes that are not committed.
set -euo pipefail
if [[ -n $(git status --porcelain -- "$@") ]]; then
  echo "commit.sh: the sources have changes that are not committed; figures must name a commit" >&2
  exit 1
fi
git log -1 --format=%h -- "$@"
