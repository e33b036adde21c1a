#!/usr/bin/env bash
# Installs the Debian packages that tools/debian_packages.txt names and that are missing. Silent where all are there.
set -euo pipefail
cd "$(dirname "$0")"

missing=()
while read -r line; do
  name=${line%%=*}
  if [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
    missing+=("$line")
  fi
done < <(grep -v '^#' debian_packages.txt)
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These Debian packages are missing: ${missing[*]%%=*}" >&2
    echo "Install them as root (apt-get install ...), or install sudo, and run make again." >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} Debian packages: ${missing[*]%%=*}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
