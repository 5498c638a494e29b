#!/usr/bin/env bash
# two_hosts.sh COMMAND…: runs COMMAND as two processes of MPI on two hosts, which are network namespaces of this machine
# with addresses of their own. MPI speaks TCP between them, over a link with DELAY (1ms) and RATE (1gbit), set with tc.
# Exits with 77 after a line that begins with "skipped: " where this machine does not allow it.
set -euo pipefail
delay=${DELAY:-1ms}
rate=${RATE:-1gbit}
(($# > 0)) || { echo "usage: two_hosts.sh COMMAND…" >&2; exit 2; }

skip() { echo "skipped: $1"; exit 77; }
((EUID == 0)) || skip "only root can make network namespaces"
for tool in ip tc mpirun; do
  command -v "$tool" >/dev/null || skip "there is no $tool"
done

a=lazyllm-a-$$
b=lazyllm-b-$$
agent=$(mktemp)
remove() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -f "$agent"
}
trap remove EXIT
ip netns add "$a" 2>/dev/null || skip "no right to make network namespaces"
ip netns add "$b" || skip "no right to make network namespaces"
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b" 2>/dev/null || skip "no pairs of virtual network devices"
for host in "$a 1" "$b 2"; do
  read -r name number <<<"$host"
  ip -n "$name" addr add "10.77.0.$number/24" dev veth0
  ip -n "$name" link set lo up
  ip -n "$name" link set veth0 up
  shape() { ip netns exec "$name" tc qdisc add dev veth0 root "$@" 2>/dev/null; }
  if shape netem delay "$delay" rate "$rate"; then
    link="$delay, $rate"
  elif shape tbf rate "$rate" burst 128kb latency 100ms; then
    link="$rate; skipped: the delay, this kernel has no netem"
  else
    link="as it is; skipped: delay and rate, tc is not allowed here"
  fi
done
echo "Link: $link" >&2

# What mpirun calls instead of ssh: the other host is the other namespace.
cat >"$agent" <<END
#!/usr/bin/env bash
shift
exec ip netns exec $b bash -c "\$*"
END
chmod +x "$agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
ip netns exec "$a" mpirun --host 10.77.0.1:1,10.77.0.2:1 -n 2 --bind-to none --mca plm_rsh_agent "$agent" --mca btl self,tcp \
  --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "$@"
