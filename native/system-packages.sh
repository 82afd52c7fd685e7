#!/bin/sh
# Makes sure that the system packages the build, the tests and the demo need are there.
# Root: installs what is missing. Otherwise: names exactly what is missing and stops with status 2.
set -eu
PYTHON=${PYTHON:-python3}

have_header() { echo "#include <$1>" | c++ -E -x c++ - >/dev/null 2>&1; }
have_python_header() {
  "$PYTHON" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
  echo "byteprophet: error: Python 3.10 or later is needed (set PYTHON=...)" >&2
  exit 2
}

missing=""
command -v c++ >/dev/null || missing="$missing g++"
command -v patch >/dev/null || missing="$missing patch"
command -v ccache >/dev/null || missing="$missing ccache"
command -v ip >/dev/null && command -v tc >/dev/null || missing="$missing iproute2"
have_header zmq.h || missing="$missing libzmq3-dev"
have_header numa.h || missing="$missing libnuma-dev"
have_header benchmark/benchmark.h || missing="$missing libbenchmark-dev"
have_header gtest/gtest.h || missing="$missing libgtest-dev"
have_python_header || missing="$missing python3-dev"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # shellcheck disable=SC2086 -- a list of names
  apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
  echo "byteprophet: error: system packages are missing, install them with: apt-get install$missing" >&2
  exit 2
fi
