#!/usr/bin/env bash
# Packs a data set from S3 to S3 on a Ray cluster while a worker and the driver are killed, compares every byte with what
# one machine packs, and trains two ranks from a cold cache; one is killed, and three go on.
#
#   tools/examples/cluster.sh [FOLDER]
#
# FOLDER has images in splits and classes; without one, packstore makes a demo. S3 (moto) and Ray run on this machine, on
# its loopback address alone. Needs packstore[remote,ray], moto[server] and boto3.
set -euo pipefail

work=$(mktemp -d)
# Ray's sockets lie in this folder. Their paths can have 107 bytes, and Ray adds 65 to the folder's.
ray_work=$(mktemp -d /tmp/ray-XXXXXX)
pids=()
finish() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work" "$ray_work"
}
trap finish EXIT
say() { printf '\n== %s\n' "$*"; }
free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

folder=${1:-$work/demo}
[ -d "$folder" ] || packstore demo "$folder" >/dev/null

say "A local S3"
port=$(free_port)
moto_server -H 127.0.0.1 -p "$port" >"$work/s3.log" 2>&1 &
pids+=($!)
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=example AWS_SECRET_ACCESS_KEY=example
export AWS_REGION=us-east-1 AWS_METADATA_ENDPOINT=http://127.0.0.1:9
python - "$folder" <<'PYTHON'
import sys
import time
from pathlib import Path

import boto3

s3, folder = boto3.client("s3"), Path(sys.argv[1])
for _ in range(100):
    try:
        s3.create_bucket(Bucket="raw")
        break
    except Exception:  # it is not up yet
        time.sleep(0.2)
s3.create_bucket(Bucket="packed")
files = [file for file in folder.rglob("*") if file.is_file()]
for file in files:
    s3.upload_file(str(file), "raw", f"{folder.name}/{file.relative_to(folder)}")
print(f"{len(files)} files at s3://raw/{folder.name}")
PYTHON
source=s3://raw/$(basename "$folder")
store=s3://packed/images.lmdb
shard_size=$(($(du -sb "$folder" | cut -f1) / 30))

say "A local Ray"
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
ray_port=$(free_port)
# With --block it ends its own processes when it is killed. `ray stop` would end those of every cluster of this user.
ray start --block --head --node-ip-address 127.0.0.1 --port "$ray_port" --num-cpus 2 --object-store-memory 100000000 \
    --include-dashboard false --temp-dir "$ray_work" >"$work/ray.log" 2>&1 &
ray=$!
pids+=("$ray")
until grep -q 'Ray runtime started' "$work/ray.log"; do
    kill -0 "$ray" 2>/dev/null || { cat "$work/ray.log" >&2; exit 1; }
    sleep 0.1
done
convert=(packstore convert "$source" "$store" --shard-size "$shard_size" --cluster "ray:127.0.0.1:$ray_port")

receipts() {
    python -c 'import sys; from packstore.objects import open_objects
print(sum("/done/" in o.name for o in open_objects(sys.argv[1]).list("_work/")))' "$store"
}
await_receipts() {
    until [ "$(receipts)" -ge "$1" ]; do
        kill -0 "$driver" 2>/dev/null || { echo "the driver has ended with $(receipts) receipts" >&2; exit 1; }
    done
}

say "Conversion; a worker is killed, then the driver"
"${convert[@]}" --quiet &
driver=$!
await_receipts 1
worker=$(pgrep -f 'ray::packstore shard' -P "$(pgrep -d, -x raylet -P "$ray")" | head -1 || true)
[ -z "$worker" ] || { kill -9 "$worker" && echo "worker $worker is killed"; }
await_receipts 2
kill -9 "$driver" && echo "driver $driver is killed with $(receipts) receipts"
wait "$driver" 2>/dev/null || true

say "The same command again"
"${convert[@]}"

say "What one machine packs"
packstore convert "$source" "$work/one.lmdb" --shard-size "$shard_size" --quiet
python - "$store" "$work/one.lmdb" <<'PYTHON'
import sys
from pathlib import Path

from packstore.objects import open_objects
from packstore.stores.opening import read_manifest
from packstore.stores.remote_objects import shard_object_names, table_name, version_name

objects, one = open_objects(sys.argv[1]), Path(sys.argv[2])
table = read_manifest(one).shards
expected = {
    name: (one / shard / "data.mdb").read_bytes()
    for name, shard in zip(shard_object_names(table), table.names(), strict=True)
}
expected[table_name(table)] = table.table.tobytes()
expected[version_name(1)] = expected["manifest.json"] = (one / "manifest.json").read_bytes()
found = {info.name for info in objects.list()}
if left := found - expected.keys():
    print("not part of the store:", *sorted(left))
assert all(objects.get(name) == data for name, data in expected.items()), "bytes differ"
print(f"{len(expected)} objects, {sum(map(len, expected.values())):,} bytes: all equal")
PYTHON
packstore verify "$store"

train() { # ranks
    local ranks=$1
    export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT
    MASTER_PORT=$(free_port)
    started=()
    for ((rank = 0; rank < ranks; rank++)); do
        RANK=$rank OMP_NUM_THREADS=1 python "$(dirname "$0")/train_ranks.py" "$store" --checkpoint "$work/state.pt" \
            --global-batch 6 --every 2 2>>"$work/train.log" &
        started+=($!)
    done
    pids+=("${started[@]}")
}

say "Two ranks train from a cold cache; one is killed"
export PACKSTORE_CACHE=$work/cache
train 2
until [ -f "$work/state.pt" ]; do
    kill -0 "${started[0]}" 2>/dev/null || { cat "$work/train.log" >&2; exit 1; }
    sleep 0.1
done
kill -9 "${started[1]}" 2>/dev/null || true
wait "${started[0]}" && echo "rank 0 ended its epoch before that" || echo "rank 0 ended, as its peer was gone"

say "Three go on"
train 3
for pid in "${started[@]}"; do wait "$pid" || { cat "$work/train.log" >&2; exit 1; }; done
packstore cache list | tail -1
