#!/bin/sh
# Installs rustup of one version, checked by its digest. rust-toolchain.toml selects the compiler.
# Digests: https://static.rust-lang.org/rustup/archive/VERSION/TARGET/rustup-init.sha256
set -eu
version=1.28.2
case $(uname -m) in
x86_64)
  target=x86_64-unknown-linux-gnu
  digest=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
  ;;
aarch64)
  target=aarch64-unknown-linux-gnu
  digest=e3853c5a252fca15252d07cb23a1bdd9377a8c6f3efa01531109281ae47f841c
  ;;
*)
  echo "no digest of rustup for $(uname -m): add it to $0" >&2
  exit 1
  ;;
esac
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
curl --proto '=https' --tlsv1.2 -sSf -o "$folder/rustup-init" \
  "https://static.rust-lang.org/rustup/archive/$version/$target/rustup-init"
echo "$digest  $folder/rustup-init" | sha256sum --check --quiet
chmod +x "$folder/rustup-init"
"$folder/rustup-init" -y --default-toolchain none
