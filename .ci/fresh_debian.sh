#!/usr/bin/env bash
# fresh_debian.sh RELEASE [COMMAND]: what a new user meets. Makes a minimal Debian of that release (bookworm, trixie) with
# git and nothing else of use, clones the last commit into it, and runs COMMAND there as root. Without COMMAND: the
# README's first command, then one quick test program; in trixie also that of the host's kernels, which sees its compiler
# and oneDNN, with what the processor has and with AVX2. Those of bookworm are the outer machine's.
# The minimal system is made once, with debootstrap, and kept with its packages in ${XDG_CACHE_HOME:-~/.cache}/lazyllm. It
# is entered in namespaces of its own, so that its mounts and processes end with the command. Mirror, proxy and trusted
# certificates are those of this machine. Exits with 77, and says why, where such a system cannot be made.
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:?usage: fresh_debian.sh RELEASE [COMMAND]}
seconds=1800  # longest run: two minutes where nothing else runs

first_command=$(grep -m1 -E '^ *bash ' README.md)
tests=(test_policy)
[[ $release == bookworm ]] || tests+=(test_llama_kernels)
command=${2:-"{ $first_command
} | tee first_command.log
grep -q '^TTFT speedup: ' first_command.log
cmake --build --preset release --target ${tests[*]}
ctest --preset release -R '^($(IFS='|'; echo "${tests[*]}"))(_AVX2)?\$' --no-tests=error"}

skip() { echo "skipped: $1"; exit 77; }
((EUID == 0)) || skip "only root can make a minimal Debian"
unshare --mount --pid --fork true 2>/dev/null || skip "no right to make mount and process namespaces"
bash cmake/install_packages.sh debootstrap >/dev/null 2>&1 || true
command -v debootstrap >/dev/null || skip "debootstrap cannot be installed"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/lazyllm
root=$cache/debian-$release
mkdir -p "$cache/packages-$release"
exec 9>"$root.lock"
flock 9  # one run at a time uses the folder
remove_root() { rm -rf --one-file-system "$root"; }
trap remove_root EXIT
trap 'exit 1' INT TERM
remove_root  # that of a run which was killed

if [[ ! -f $root.tar.gz ]]; then
  echo "Making a minimal Debian $release"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sort -u | head -1)
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  http_proxy=${proxy:-${http_proxy:-}} timeout "$seconds" debootstrap --variant=minbase --include=git,ca-certificates \
    "$release" "$root" ${mirror:+"$mirror"} >"$root.log" || { tail -20 "$root.log"; exit 1; }
  apt-config dump | grep -E '^Acquire::(https?|Retries|Check-)' >"$root/etc/apt/apt.conf.d/90of-the-outer-machine" || true
  rm -rf "$root"/var/cache/apt/archives/*.deb
  tar -C "$root" -I "gzip -1" -cf "$root.tar.gz.part" .
  mv "$root.tar.gz.part" "$root.tar.gz"
  remove_root
fi
mkdir "$root"
tar -C "$root" -xzf "$root.tar.gz"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
git bundle create -q "$root/root/lazyllm.bundle" HEAD
cat >"$root/command" <<END
set -euo pipefail
cd
git -c init.defaultBranch=main -c advice.detachedHead=false clone -q lazyllm.bundle lazyllm
cd lazyllm
$command
END

timeout --signal=KILL "$seconds" unshare --mount --pid --fork --kill-child bash -ec '
  mount --rbind /dev "$1/dev"
  mount -t proc proc "$1/proc"
  mount --rbind /sys "$1/sys"
  mount --bind "$2" "$1/var/cache/apt/archives"
  exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$1" bash /command' bash "$root" "$cache/packages-$release" </dev/null || {
  status=$?
  if ((status == 137)); then echo "Stopped after $seconds s"; fi
  exit "$status"
}
