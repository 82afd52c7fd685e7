#!/bin/sh
# Installs what tests/remote starts: Slurm, munge, sshd and Open MPI. Without them, those tests are skipped.
# No daemon is started: the tests start their own, on loopback.
set -eu
missing=""
PATH=$PATH:/usr/sbin
command -v sshd >/dev/null || missing="$missing openssh-server"
command -v munged >/dev/null || missing="$missing munge"
command -v slurmd >/dev/null && command -v slurmctld >/dev/null && command -v srun >/dev/null || missing="$missing slurm-wlm"
command -v mpirun >/dev/null || missing="$missing openmpi-bin"
[ -z "$missing" ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "byteprophet: tests of clusters will be skipped; for them: apt-get install$missing" >&2
  exit 0
fi
echo "installing$missing"
# Debian asks this program whether it may start a package's daemons (invoke-rc.d(8)).
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 -- a list of names
apt-get install -y -qq --no-install-recommends $missing >/dev/null
